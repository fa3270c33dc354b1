-- How many days passed between a sale and its return, by store.
SELECT
    s_store_name,
    s_company_id,
    sum(CASE WHEN sr_returned_date_sk - ss_sold_date_sk <= 30 THEN 1 ELSE 0 END) AS days_30,
    sum(CASE WHEN sr_returned_date_sk - ss_sold_date_sk > 30 AND sr_returned_date_sk - ss_sold_date_sk <= 60 THEN 1 ELSE 0 END)
        AS days_60,
    sum(CASE WHEN sr_returned_date_sk - ss_sold_date_sk > 60 THEN 1 ELSE 0 END) AS days_more
FROM store_sales
JOIN store_returns
    ON sr_ticket_number = ss_ticket_number AND sr_item_sk = ss_item_sk AND sr_customer_sk = ss_customer_sk
JOIN store ON s_store_sk = ss_store_sk
JOIN date_dim ON d_date_sk = sr_returned_date_sk
WHERE d_year = 2001
GROUP BY s_store_name, s_company_id
ORDER BY s_store_name, s_company_id
LIMIT 100
