"""The store's rules over any tables: databases give tables and a transaction, no more.

``operations`` says what each operation does, ``tables`` what it needs, ``store`` how it is called.
"""
