# Turns a text file into a C string literal: sed -f text_to_c.sed FILE
s/\\/\\\\/g
s/"/\\"/g
s/^/"/
s/$/\\n"/
