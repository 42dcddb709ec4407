package listen

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/prometheus/procfs"
)

// stateListen is the state of a TCP socket that listens, in /proc/net/tcp.
const stateListen = 0x0A

// findHint says how to find the process that has a port.
func findHint(network string, port uint16) string {
	return fmt.Sprintf("another process has the port (as root, ss -Hlnp%c 'sport = :%d' names it)", network[0], port)
}

// findHolder returns the process that uses the port at address. It returns false if no process uses the port, or if
// this user may not see the process.
func findHolder(network string, address netip.AddrPort) (process, bool) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return process{}, false
	}
	sockets := socketsAt(fs, network, address)
	if len(sockets) == 0 {
		return process{}, false
	}
	all, _ := fs.AllProcs()
	for _, p := range all {
		targets, _ := p.FileDescriptorTargets() // only root can read those of other users
		for _, target := range targets {
			if slices.Contains(sockets, target) {
				return describe(p), true
			}
		}
	}
	return process{}, false
}

// socketsAt returns the sockets that use a port, by their names in /proc/<pid>/fd.
func socketsAt(fs procfs.FS, network string, at netip.AddrPort) (out []string) {
	var all procfs.NetIPSocket
	if network == "udp" { // a missing file counts as no sockets, because IPv6 may be off
		four, _ := fs.NetUDP()
		six, _ := fs.NetUDP6()
		all = procfs.NetIPSocket(append(four, six...))
	} else {
		//lint:ignore SA1019 netlink needs a library of its own, and this runs only after an error
		four, _ := fs.NetTCP()
		//lint:ignore SA1019 as above
		six, _ := fs.NetTCP6()
		all = procfs.NetIPSocket(append(four, six...))
	}
	for _, s := range all {
		ip, _ := netip.AddrFromSlice(s.LocalAddr)
		if s.LocalPort == uint64(at.Port()) && (network == "udp" || s.St == stateListen) && overlap(ip, at.Addr()) {
			out = append(out, fmt.Sprintf("socket:[%d]", s.Inode))
		}
	}
	return out
}

// overlap reports whether sockets on the same port conflict if they are bound to the addresses a and b. An invalid or
// unspecified address conflicts with every address.
func overlap(a, b netip.Addr) bool {
	a, b = a.Unmap(), b.Unmap()
	return a == b || !a.IsValid() || !b.IsValid() || a.IsUnspecified() || b.IsUnspecified()
}

// describe returns what is known of a process.
func describe(p procfs.Proc) process {
	command, _ := p.CmdLine()
	out := process{pid: p.PID, command: command}
	if info, err := os.Stat(fmt.Sprintf("/proc/%d", p.PID)); err == nil {
		owner, ok := info.Sys().(*syscall.Stat_t)
		out.mine = ok && int64(owner.Uid) == int64(os.Geteuid())
	}
	path, _ := p.Executable()
	own, _ := os.Executable()
	out.quorate = filepath.Base(path) == "quorate" || path != "" && path == own
	return out
}
