-- States where ten or more bought, in one month, items a fifth above the price of their category.
SELECT a.ca_state AS state, count(*) AS cnt
FROM customer_address AS a
JOIN customer AS c ON c.c_current_addr_sk = a.ca_address_sk
JOIN store_sales AS s ON s.ss_customer_sk = c.c_customer_sk
JOIN date_dim AS d ON d.d_date_sk = s.ss_sold_date_sk
JOIN item AS i ON i.i_item_sk = s.ss_item_sk
WHERE d.d_month_seq = (SELECT DISTINCT d_month_seq FROM date_dim WHERE d_year = 2001 AND d_moy = 1)
  AND i.i_current_price > 1.2 * (SELECT avg(j.i_current_price) FROM item AS j WHERE j.i_category = i.i_category)
GROUP BY a.ca_state
HAVING count(*) >= 10
ORDER BY cnt, a.ca_state
LIMIT 100
