"""What partq asks an Azure account for, counted and priced: docs/cost.md has it, and a test counts again."""
