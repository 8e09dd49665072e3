// The interface through which a decoder delivers the rows of a crop.
#pragma once

#include "types.h"

namespace custom_op {

// Takes the rows of a crop, top to bottom, 3 bytes per pixel: RGB.
class RowSink {
 public:
  virtual ~RowSink() = default;
  // Called before the first row, and again if the decoder must restart from the first row.
  virtual void begin() = 0;
  // Where the decoder must write the next row: memory for exactly one row.
  virtual uint8_t* next() = 0;
  // Called when the row is written.
  virtual void written() = 0;
};

}  // namespace custom_op
