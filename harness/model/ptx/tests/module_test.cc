// SPDX-License-Identifier: Apache-2.0
// Parsing: malformed text, unsupported instructions, several units, names.
#include "evaluate.h"

namespace {

using namespace ipclab::ptx;
using namespace ipclab::ptx::testing;

std::string entry(const std::string& name, const std::string& body) {
  return ".visible .entry " + name + "() {\n" + body + "\n}\n";
}

std::string error_of(const std::string& text) {
  try {
    Module::parse(header() + text);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(Parser, MalformedTextNamesItsLine) {
  EXPECT_EQ(error_of(".global .b32 x[4\n;"),
            "PTX line 5: expected ']' before ';'");
  EXPECT_EQ(error_of("nonsense"), "PTX line 4: unexpected 'nonsense'");
  EXPECT_NE(error_of(".entry k() { add.s32 %r1, "), "");
  EXPECT_NE(error_of(".entry k() { add.s32 %r1 %r2; }"), "");
  EXPECT_NE(error_of(".entry k() { .reg .q32 a; }"), "");
  EXPECT_NE(error_of("/* never closed"), "");
  EXPECT_NE(error_of(".pragma \"open\n"), "");
  EXPECT_NE(error_of(".global .b8 x[2] = {1, 2, 3};"), "");
  EXPECT_EQ(error_of(entry("k", "bra nowhere;")),
            "PTX line 5: no label 'nowhere'");
  EXPECT_EQ(error_of(entry("k", "ret;")), "");
}

std::string why_not(const std::string& body) {
  const auto module =
      Module::parse(header() + entry("bad", body) + entry("good", "ret;"));
  EXPECT_EQ(module->kernel("good")->unsupported(), "");
  return module->kernel("bad")->unsupported();
}

TEST(Decoder, AnUnsupportedInstructionMarksItsKernelOnly) {
  const std::string text = header() +
                           entry("bad", "wgmma.fence.sync.aligned;") +
                           entry("good", "ret;");
  const auto module = Module::parse(text);
  EXPECT_EQ(module->kernel("bad")->unsupported(),
            "instruction 'wgmma.fence.sync.aligned' (line 5) is not supported");
  Device device(4u << 20);
  const auto fault =
      launch(device, module->kernel("bad"), Shape{1}, Shape{1}, 0, 1, false);
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->code, 218);
  for (const char* part : {"bad", "wgmma.fence.sync.aligned", "line 5"})
    EXPECT_NE(fault->what.find(part), std::string::npos) << fault->what;
  EXPECT_FALSE(
      launch(device, module->kernel("good"), Shape{1}, Shape{1}, 0, 1, false));
}

TEST(Decoder, NothingIsIgnoredSilently) {
  const std::string r =
      ".reg .b32 a, b, d; .reg .b64 l; .reg .f32 f; .reg .pred p;";
  EXPECT_EQ(why_not(r + "add.s32 d, a, b;"), "");
  EXPECT_NE(why_not(r + "add.strange.s32 d, a, b;"), "");
  EXPECT_NE(why_not(r + "add.s32 d, a;"), "");
  EXPECT_NE(why_not(r + "add.s32 d, a, b, a;"), "");
  EXPECT_NE(why_not(r + "add.s32 d, a, l;"), "");
  EXPECT_NE(why_not(r + "add.s32 d, a, p;"), "");
  EXPECT_NE(why_not(r + "add.s32 5, a, b;"), "");
  EXPECT_NE(why_not(r + "mov.u32 d, %no_such_register;"), "");
  EXPECT_NE(why_not(r + "mov.u64 l, undefined;"), "");
  EXPECT_NE(why_not(r + "min.xorsign.abs.f32 f, f, f;"), "");
  EXPECT_NE(why_not(r + "setp.foo.s32 p, a, b;"), "");
  EXPECT_NE(why_not(r + "tex.2d.v4.f32.s32 {f, f, f, f}, [t, {a, b}];"), "");
  EXPECT_NE(why_not(r + "atom.global.add.v2.f32 {f, f}, [l], {f, f};"), "");
}

TEST(Parser, SpaceBetweenDirectiveAndTypeIsOptional) {
  EXPECT_EQ(why_not(".reg.b32 f; .reg.pred p; mov.b32 f, 1;"), "");
  EXPECT_NE(why_not(".unknown x;"), "");
}

TEST(Decoder, TakesOneRegisterInBraces) {
  EXPECT_EQ(why_not(".reg.b64 a, p; ld.relaxed.gpu.global.u64 {a}, [p];"
                    "st.volatile.global.u64 [p], {a};"),
            "");
  EXPECT_NE(why_not(".reg.b64 a, p; ld.global.u64 {a, a}, [p];"), "");
}

TEST(Decoder, UndefinedFunctionsAreNamed) {
  const auto module =
      Module::parse(header() +
                    ".extern .func outside ();\n.func middle () { call "
                    "outside, (); ret; }\n" +
                    entry("k", "call middle, ();") + entry("fine", "ret;"));
  EXPECT_NE(module->kernel("k")->unsupported().find("'outside' is not defined"),
            std::string::npos);
  EXPECT_EQ(module->kernel("fine")->unsupported(), "");
}

// A kernel has the shared memory of the units whose variables it can use, by a
// call, too. Units that no kernel uses together have the same place.
TEST(Units, AKernelPaysForTheSharedMemoryThatItUses) {
  const auto unit = [](const std::string& name) {
    return header() + ".shared .align 4 .b8 memory_" + name +
           "[40000];\n.visible .func put_" + name +
           " () { .reg .b32 a; mov.u32 a, memory_" + name +
           "; st.shared.u32 [a], 7; ret; }\n" +
           entry("kernel_" + name, "call put_" + name + ", ();");
  };
  const auto apart = Module::parse(unit("a") + unit("b"));
  EXPECT_EQ(apart->kernel("kernel_a")->static_shared_bytes(), 40000u);
  EXPECT_EQ(apart->kernel("kernel_b")->static_shared_bytes(), 40000u);
  const auto together = Module::parse(
      unit("a") + unit("b") + header() +
      ".extern .func put_a ();\n.extern .func put_b ();\n" +
      entry("both", "call put_a, (); call put_b, ();") + entry("none", "ret;"));
  EXPECT_EQ(together->kernel("both")->static_shared_bytes(), 80000u);
  EXPECT_EQ(together->kernel("none")->static_shared_bytes(), 0u);
}

TEST(Units, ConcatenatedTextsShareVisibleNamesOnly) {
  // Each unit has its own `secret`. Both units use `shared` and `give`.
  const auto module = Module::parse(
      header() +
      ".global .b32 secret = 1;\n.visible .global .b32 shared = 10;\n"
      ".visible .func (.param .b32 r) give() { .reg .b32 x; ld.global.u32 x, "
      "[secret]; st.param.b32 [r], x; ret; }\n" +
      header() +
      ".global .b32 secret = 2;\n.extern .global .b32 shared;\n.extern .func "
      "(.param .b32 r) give();\n"
      ".visible .entry k(.param .u64 out) { .reg .b32 x, y; .reg .b64 o; "
      "ld.param.u64 o, [out];\n"
      "{ .param .b32 v; call (v), give, (); ld.param.b32 x, [v]; }\n"
      "ld.global.u32 y, [secret]; shl.b32 y, y, 4; or.b32 x, x, y;\n"
      "ld.global.u32 y, [shared]; shl.b32 y, y, 8; or.b32 x, x, y; "
      "st.global.u32 [o], x; ret; }\n");
  ASSERT_EQ(module->variables().size(), 3u);
  Device device(4u << 20);
  device.load(*module);
  const uint64_t out = device.allocate(4);
  ASSERT_EQ(module->kernel("k")->unsupported(), "");
  const auto fault =
      launch(device, module->kernel("k"), Shape{1}, Shape{1}, 0, 5, false, out);
  ASSERT_FALSE(fault) << fault->what;
  EXPECT_EQ(*device.host<uint32_t>(out), 0xa21u);
}

TEST(Link, InitialisersTakeAddresses) {
  const auto module =
      Module::parse(header() +
                    ".global .align 8 .u64 p[3] = {q, generic(q)+4, "
                    "7};\n.global .align 4 .u32 q[2] = {0x10, -1};\n" +
                    entry("k", "ret;"));
  auto& variables = module->variables();
  ASSERT_EQ(variables.size(), 2u);
  EXPECT_EQ(variables[0].size, 24u);
  EXPECT_EQ(variables[0].alignment, 8u);
  variables[0].address = 0x1000;
  variables[1].address = 0x2000;
  module->link();
  uint64_t p[3];
  ASSERT_EQ(variables[0].initial.size(), sizeof p);
  std::memcpy(p, variables[0].initial.data(), sizeof p);
  EXPECT_EQ(p[0], 0x2000u);
  EXPECT_EQ(p[1], 0x2004u);
  EXPECT_EQ(p[2], 7u);
}

TEST(Module, LaunchBoundsAndUnknownNames) {
  const auto module = Module::parse(
      header() +
      ".visible .entry k() .maxntid 64, 2, 1 .minnctapersm 2 { ret; }\n");
  EXPECT_EQ(module->kernel("k")->max_threads_per_block(), 128u);
  EXPECT_EQ(module->kernel("other"), nullptr);
}

}  // namespace
