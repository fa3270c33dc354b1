-- Discounts on catalog sales that exceed the usual ones of an item.
SELECT sum(cs_ext_discount_amt) AS excess_discount_amount
FROM catalog_sales AS sold
JOIN item ON i_item_sk = sold.cs_item_sk
JOIN date_dim ON d_date_sk = sold.cs_sold_date_sk
WHERE i_manufact_id < 400
  AND d_date BETWEEN DATE '2000-01-27' AND DATE '2000-01-27' + INTERVAL '90' DAY
  AND sold.cs_ext_discount_amt > (
      SELECT 1.3 * avg(other.cs_ext_discount_amt)
      FROM catalog_sales AS other
      JOIN date_dim AS day ON day.d_date_sk = other.cs_sold_date_sk
      WHERE other.cs_item_sk = item.i_item_sk
        AND day.d_date BETWEEN DATE '2000-01-27' AND DATE '2000-01-27' + INTERVAL '90' DAY
  )
