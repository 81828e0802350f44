/* A library whose name begins with "libtorch": what no plugin may need. */
__attribute__((visibility("default"))) void backplane_symbol_of_fake_torch(void);
void backplane_symbol_of_fake_torch(void) {}
