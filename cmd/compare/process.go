package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// missingError is the error for a program that is not found.
type missingError struct{ name, program string }

func (e *missingError) Error() string {
	return fmt.Sprintf("%s: the program %q is not found; give its path with -%s", e.name, e.program, e.name)
}

// processes are the processes of one store.
type processes struct {
	dir  string
	cmds []*exec.Cmd
}

// start runs a program until end. Its output goes to its own log file.
func (p *processes) start(name, program string, args ...string) error {
	log, err := os.Create(filepath.Join(p.dir, name+".log"))
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own descriptor
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, p.dir
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmds = append(p.cmds, cmd)
	return nil
}

// cpu returns the total user and system CPU time of all processes and their direct children, from /proc. The
// resolution is 10 ms. It returns false if the time cannot be read.
func (p *processes) cpu() (time.Duration, bool) {
	var ticks int64
	var pids []string
	for _, c := range p.cmds {
		id := strconv.Itoa(c.Process.Pid)
		children, err := os.ReadFile("/proc/" + id + "/task/" + id + "/children")
		if err != nil {
			return 0, false
		}
		pids = append(append(pids, id), strings.Fields(string(children))...)
	}
	for _, id := range pids {
		text, err := os.ReadFile("/proc/" + id + "/stat")
		if err != nil {
			return 0, false
		}
		// The name of the program, in parentheses, may contain spaces.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		const user, system = 11, 12
		if len(fields) <= system {
			return 0, false
		}
		for _, field := range []string{fields[user], fields[system]} {
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return 0, false
			}
			ticks += n
		}
	}
	return time.Duration(ticks) * (time.Second / 100), true
}

func (p *processes) end() {
	for _, c := range p.cmds {
		_ = c.Process.Kill() // its data is removed with the directory
		_ = c.Wait()
	}
}

// failed adds the end of the logs to an error.
func (p *processes) failed(err error) error {
	logs, _ := filepath.Glob(filepath.Join(p.dir, "*.log")) // the pattern is well formed
	for _, name := range logs {
		if text, readErr := os.ReadFile(name); readErr == nil && len(text) > 0 {
			err = fmt.Errorf("%w\n%s ends with:\n%s", err, filepath.Base(name), text[max(0, len(text)-2000):])
		}
	}
	return err
}

// freePorts returns n ports of 127.0.0.1 that are free now. They are below the usual range of ports for outgoing
// connections, so that no such connection takes one of them before the processes start.
func freePorts(n int) ([]string, error) {
	const first, end = 10240, 32768
	var out []string
	for _, i := range rand.Perm(end - first) {
		if len(out) == n {
			return out, nil
		}
		port := strconv.Itoa(first + i)
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			continue
		}
		_ = l.Close()
		out = append(out, port)
	}
	return nil, fmt.Errorf("127.0.0.1 has fewer than %d free ports between %d and %d", n, first, end-1)
}

// find returns the path of a program, and a directory for its processes.
func find(name, program, dir string) (path string, p *processes, err error) {
	path, err = exec.LookPath(program)
	if err != nil {
		return "", nil, &missingError{name, program}
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", nil, err
	}
	p = &processes{dir: filepath.Join(dir, name)}
	return path, p, os.Mkdir(p.dir, 0o700)
}

// startSelf starts this program again as a server at a free address. The argument role is the name of the flag that
// selects the server. The function value returns the value of the flag for an address.
func startSelf(role, dir string, value func(address string) string) (p *processes, address string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	program, p, err := find(role, self, dir)
	if err != nil {
		return nil, "", err
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, "", err
	}
	address = "127.0.0.1:" + ports[0]
	return p, address, p.start(role, program, "-"+role, value(address))
}

// firstLine returns the first line that a program prints, which is its version.
func firstLine(program string, args ...string) string {
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		return err.Error()
	}
	for i, b := range out {
		if b == '\n' {
			return string(out[:i])
		}
	}
	return string(out)
}
