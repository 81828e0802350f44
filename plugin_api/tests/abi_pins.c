/* The layout of every released version, held against today's headers. One include per version; a
 * line that does not compile is a broken promise (VERSIONING.md), not a number to update. */
#include "abi_0_2_pins.h"
#include "abi_0_3_pins.h"

int backplane_abi_pins_checked(void);
int backplane_abi_pins_checked(void) { return (int)BP_VERSION_MINOR(BP_ABI_VERSION); }
