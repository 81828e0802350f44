// Folders of this user alone, for what is kept between processes.
#pragma once

#include <string>

namespace backplane::runtime {

// Empty: the folder is there (made with mode 0700 where it was not), ours, and nobody else's.
// Otherwise what is wrong with it.
std::string directory_fault(const std::string& directory);

// $HOME, else what the system's list of users says; empty where neither knows.
std::string home_directory();

}  // namespace backplane::runtime
