-- Volume shipping: goods sent between two nations in two years.
SELECT supp_nation, cust_nation, l_year, sum(volume) AS revenue
FROM (
    SELECT
        sold.n_name AS supp_nation,
        bought.n_name AS cust_nation,
        extract(YEAR FROM l_shipdate) AS l_year,
        l_extendedprice * (1 - l_discount) AS volume
    FROM supplier
    JOIN lineitem ON l_suppkey = s_suppkey
    JOIN orders ON o_orderkey = l_orderkey
    JOIN customer ON c_custkey = o_custkey
    JOIN nation AS sold ON sold.n_nationkey = s_nationkey
    JOIN nation AS bought ON bought.n_nationkey = c_nationkey
    WHERE ((sold.n_name = 'FRANCE' AND bought.n_name = 'GERMANY')
        OR (sold.n_name = 'GERMANY' AND bought.n_name = 'FRANCE'))
      AND l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
) AS shipping
GROUP BY supp_nation, cust_nation, l_year
ORDER BY supp_nation, cust_nation, l_year
