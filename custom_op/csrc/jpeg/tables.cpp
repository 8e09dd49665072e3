#include "jpeg/tables.h"

#include <algorithm>
#include <numeric>

#include "jpeg/markers.h"

namespace custom_op {
namespace {

bool parse_quantization(const uint8_t* at, const uint8_t* end, ScanTables& tables) {
  while (at < end) {
    const int index = *at & 15, bytes = *at >> 4 == 0 ? 1 : 2;
    ++at;
    if (index > 3 || end - at < 64 * bytes) return false;
    for (int i = 0; i < 64; ++i, at += bytes) {
      const int value = bytes == 1 ? at[0] : at[0] << 8 | at[1];
      tables.quantization[index][kNaturalOrder[i]] = static_cast<uint16_t>(value);
    }
    tables.quantization_defined[index] = true;
  }
  return true;
}

bool parse_huffman(const uint8_t* at, const uint8_t* end, ScanTables& tables) {
  while (at < end) {
    const int index = *at & 15, kind = *at >> 4;
    ++at;
    if (index > 3 || kind > 1 || end - at < 16) return false;
    HuffmanCode& code = (kind == 0 ? tables.dc : tables.ac)[index];
    std::copy_n(at, 16, code.lengths.begin() + 1);
    at += 16;
    const int count = std::accumulate(code.lengths.begin() + 1, code.lengths.end(), 0);
    if (count > 256 || end - at < count) return false;
    code.symbols.fill(0);
    std::copy_n(at, count, code.symbols.begin());
    code.defined = true;
    at += count;
  }
  return true;
}

bool parse_selections(const uint8_t* frame, const uint8_t* scan, int count, ScanTables& tables) {
  for (int i = 0; i < count; ++i) {
    const int quantization = frame[6 + 3 * i + 2], huffman = scan[2 + 2 * i];
    const ScanTables::Selection chosen{quantization, huffman >> 4, huffman & 15};
    if (chosen.quantization > 3 || chosen.dc > 3 || chosen.ac > 3) return false;
    if (!tables.quantization_defined[chosen.quantization]) return false;
    if (!tables.dc[chosen.dc].defined || !tables.ac[chosen.ac].defined) return false;
    tables.components[i] = chosen;
  }
  return true;
}

}  // namespace

bool parse_tables(Bytes jpeg, const Header& header, ScanTables& tables) {
  tables.quantization_defined.fill(false);
  for (auto* codes : {&tables.dc, &tables.ac}) {
    for (HuffmanCode& code : *codes) code.defined = false;
  }
  for (const Segment& segment : header.segments) {
    const uint8_t* payload = jpeg.data + segment.begin + 4;
    const uint8_t* end = jpeg.data + segment.end;
    if (segment.marker == kDqt && !parse_quantization(payload, end, tables)) return false;
    if (segment.marker == kDht && !parse_huffman(payload, end, tables)) return false;
    if (segment.marker == kSos) {
      const uint8_t* frame = jpeg.data + header.frame + 4;
      return parse_selections(frame, payload, header.component_count, tables);
    }
  }
  return false;
}

}  // namespace custom_op
