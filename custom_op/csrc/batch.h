// Decodes, crops, resizes and augments views of an image into their slots of a batch.
#pragma once

#include "augment/augmenter.h"
#include "pixels/decode.h"
#include "pixels/orientation.h"
#include "resize/resize.h"

namespace custom_op {

// Note [From bytes to batch]
// binding/            the operators for torch: check tensors; one ImageWorker per thread
// ImageWorker         opens a file once; maps the upright box of each view to stored pixels;
//                     connects decoder, resizer and slot
// jpeg/               bytes: headers, tables, restart markers; libjpeg's decompressor
// entropy/            bytes to coefficients: bits, Huffman codes, MCUs
// samples/            coefficients to rows: inverse DCT, upsampling, color
// pixels/             the decoder of regions, which chooses between samples/ and libjpeg
// resize/             rows of the crop to rows of the result
// SlotWriter          receives resized rows and writes them into the batch
// augment/            operations on the resized crop, if the sample has any
//
// Rows flow one at a time while they are in cache: RegionDecoder calls RowSink (the Resizer), which
// calls ResizedRows (the SlotWriter). A sample with operations takes a detour: a SlotWriter writes
// its rows to a canvas, which stays in cache too, the operations change it as a whole, and another
// SlotWriter receives its rows. A folder includes only those listed before it, and none of them
// includes torch.

// Where one view of `size` x `size` pixels goes in the batch tensor; strides in bytes.
struct Slot {
  uint8_t* data = nullptr;
  int64_t size = 0;
  int64_t channel_stride = 0, row_stride = 0, column_stride = 0;
};

// Not thread-safe; keeps its buffers for the next image.
class ImageWorker {
 public:
  // Reads an image, of which cut() then takes any number of views. `side_index` may be empty. Both
  // throw JpegError. `index_share`: of a new index, see finish_index().
  void open(Bytes jpeg, Bytes side_index, int64_t max_pixels, double index_share = 0);
  // `box` is in upright pixels. `operations` may be empty.
  void cut(const Box& box, bool flip, const std::vector<Operation>& operations, const Slot& slot);
  // The index that was made while views were cut, of at most `index_share` of the file's size;
  // empty if the file has one already, or cannot have one.
  std::vector<uint8_t> finish_index() { return decoder_.finish_side_index(); }
  bool has_stale_index() const { return decoder_.has_stale_index(); }

 private:
  void resize_into(const Box& stored, Orientation orientation, const Slot& slot);

  RegionDecoder decoder_;
  Resizer resizer_;
  Augmenter augmenter_;
};

}  // namespace custom_op
