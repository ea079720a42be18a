"""What algorithms that train share: collecting, weighing, accounts, generations, model servers."""
