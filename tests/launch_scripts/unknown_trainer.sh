python tools/download.py && python simulate_everything.py --rounds 5
