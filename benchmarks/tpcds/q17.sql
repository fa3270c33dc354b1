-- Quantities of items that were bought in a store, returned, and then bought by catalog.
SELECT
    i_item_id,
    i_item_desc,
    s_state,
    count(ss_quantity) AS store_sales_quantitycount,
    avg(ss_quantity) AS store_sales_quantityave,
    stddev_samp(ss_quantity) AS store_sales_quantitystdev,
    stddev_samp(ss_quantity) / avg(ss_quantity) AS store_sales_quantitycov,
    count(sr_return_quantity) AS store_returns_quantitycount,
    avg(sr_return_quantity) AS store_returns_quantityave,
    stddev_samp(sr_return_quantity) AS store_returns_quantitystdev,
    stddev_samp(sr_return_quantity) / avg(sr_return_quantity) AS store_returns_quantitycov,
    count(cs_quantity) AS catalog_sales_quantitycount,
    avg(cs_quantity) AS catalog_sales_quantityave,
    stddev_samp(cs_quantity) AS catalog_sales_quantitystdev,
    stddev_samp(cs_quantity) / avg(cs_quantity) AS catalog_sales_quantitycov
FROM store_sales
JOIN store_returns
    ON sr_customer_sk = ss_customer_sk AND sr_item_sk = ss_item_sk AND sr_ticket_number = ss_ticket_number
JOIN catalog_sales ON cs_bill_customer_sk = sr_customer_sk AND cs_item_sk = sr_item_sk
JOIN date_dim AS d1 ON d1.d_date_sk = ss_sold_date_sk
JOIN date_dim AS d2 ON d2.d_date_sk = sr_returned_date_sk
JOIN date_dim AS d3 ON d3.d_date_sk = cs_sold_date_sk
JOIN store ON s_store_sk = ss_store_sk
JOIN item ON i_item_sk = ss_item_sk
WHERE d1.d_quarter_name = '2001Q1'
  AND d2.d_quarter_name IN ('2001Q1', '2001Q2', '2001Q3')
  AND d3.d_quarter_name IN ('2001Q1', '2001Q2', '2001Q3')
GROUP BY i_item_id, i_item_desc, s_state
ORDER BY i_item_id, i_item_desc, s_state
LIMIT 100
