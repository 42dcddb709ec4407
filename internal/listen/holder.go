package listen

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// process describes a process that has a port open.
type process struct {
	pid     int
	command []string // empty = unknown
	quorate bool     // the process runs a Quorate program
	mine    bool     // the process belongs to the user of this process
}

// maxCommand bounds the command line in an error, in bytes.
const maxCommand = 120

// InUse returns a hint for a port that is already in use. The hint names the process that uses the port, if this user
// may see the process. network is "tcp" or "udp". flag is the name of the flag that sets the port.
func InUse(network string, at netip.AddrPort, flag string) string {
	who := findHint(network, at.Port())
	if p, found := findHolder(network, at); found {
		who = "the port is held by " + p.text()
	}
	return fmt.Sprintf("%s: stop it, or choose a port with %s; 0 picks a free one", who, flag)
}

// text describes the process with its pid and command. It shows the arguments of the command only if the process is a
// Quorate node. The arguments of a node contain no secrets, while those of other programs may.
func (p process) text() string {
	switch {
	case p.pid == os.Getpid():
		return fmt.Sprintf("this process, pid %d", p.pid)
	case len(p.command) == 0:
		return fmt.Sprintf("pid %d", p.pid)
	case !p.quorate:
		return fmt.Sprintf("pid %d, %s", p.pid, filepath.Base(p.command[0]))
	}
	words := slices.Clone(p.command)
	words[0] = filepath.Base(words[0])
	if child := slices.Index(words, "--"); child >= 0 {
		words = words[:child] // the application beside the node
	}
	text := fault.Shorten(strings.Join(words, " "), maxCommand)
	owner := "another user"
	if p.mine {
		owner = "this user"
	}
	return fmt.Sprintf("pid %d, %s, a Quorate node of %s", p.pid, text, owner)
}
