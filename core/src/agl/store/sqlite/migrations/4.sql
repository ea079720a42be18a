-- Checksums of what is stored from now on; older rows are read unchecked.
ALTER TABLE rollout ADD COLUMN crc INTEGER;
ALTER TABLE span ADD COLUMN crc INTEGER;
ALTER TABLE ledger_part ADD COLUMN crc INTEGER;
ALTER TABLE resources ADD COLUMN crc INTEGER;
