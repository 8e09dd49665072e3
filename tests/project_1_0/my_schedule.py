# project/my_schedule.py
def falling(epoch, epochs, low=0.01):
    return max(low, 1 - epoch / epochs)
