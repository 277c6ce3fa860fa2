"""The demo: two small models, word problems, and the script that creates them."""
