// The program behind CTest's `probe`: prints what this machine can share.
//
// SPDX-License-Identifier: Apache-2.0
namespace ipclab {
void print_probe();
}

int main() { ipclab::print_probe(); }
