// Text for files of JSON.
#pragma once

#include <string>
#include <string_view>

namespace backplane {

// A string of JSON, with its quotes.
std::string json_string(std::string_view text);

}  // namespace backplane
