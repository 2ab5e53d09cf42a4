"""What data is: schemas, tables, images, who holds which rows, and where public data sets come from."""
