// Turns a progressive JPEG into a baseline one; the coefficients stay the same.
#pragma once

#include <vector>

#include "types.h"

namespace custom_op {

// `jpeg` with its coefficients in one sequential, Huffman-coded scan without restart markers. APPn
// and COM segments are kept. A file that is coded so already is returned as it is. The pixels of
// the result are compared with the original. Throws JpegError if the file is damaged or cannot be
// rewritten without loss.
std::vector<uint8_t> to_baseline(Bytes jpeg, int64_t max_pixels);

}  // namespace custom_op
