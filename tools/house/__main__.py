from collections import Counter

from tools.house.rooms import against_the_order, all_imports

found = against_the_order(all_imports())
for one in found:
    print(one)
print(Counter((one.source, one.target) for one in found))
print(len(found))
