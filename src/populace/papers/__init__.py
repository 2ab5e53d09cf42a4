"""The papers' tables: grids of resumable cells."""
