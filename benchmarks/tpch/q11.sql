-- Important stock: the parts that make up a share of a nation's stock. The share is 0.0001 divided by the scale factor.
SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value
FROM partsupp
JOIN supplier ON s_suppkey = ps_suppkey
JOIN nation ON n_nationkey = s_nationkey
WHERE n_name = 'GERMANY'
GROUP BY ps_partkey
HAVING sum(ps_supplycost * ps_availqty) > (
    SELECT sum(ps_supplycost * ps_availqty) * :share
    FROM partsupp
    JOIN supplier ON s_suppkey = ps_suppkey
    JOIN nation ON n_nationkey = s_nationkey
    WHERE n_name = 'GERMANY'
)
ORDER BY value DESC, ps_partkey
