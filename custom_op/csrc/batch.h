// Decodes, crops, resizes and normalises one image into its slot of a batch.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "pixels/resize.h"

namespace custom_op {

enum class Element { kUint8, kFloat32, kFloat16, kBfloat16 };

// One image's place in the batch tensor; strides in elements.
struct Slot {
  void* data;
  int64_t channel_stride, row_stride, column_stride;
};

// What every image of a batch has in common.
struct BatchOptions {
  int64_t size;
  DecodeOptions decode;
  Element element;
  std::array<float, 3> scale, bias;  // of floating elements: value * scale + bias
  bool apply_orientation, scaled_decode;
  int64_t max_pixels;
};

// For one thread at a time.
class ImageWorker {
 public:
  // `box` is in upright pixels when the options apply the orientation. Throws JpegError.
  void process(Bytes jpeg, const Box& box, bool flip, const BatchOptions& options, Slot slot);

 private:
  RegionDecoder decoder_;
  Resizer resizer_;
};

}  // namespace custom_op
