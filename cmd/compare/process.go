package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/internal/listen"
)

// missingError is the error for a program that is not found.
type missingError struct{ name, program string }

func (e *missingError) Error() string {
	return fmt.Sprintf("%s: the program %q is not found; give its path with -%s", e.name, e.program, e.name)
}

// processes are the processes of one store. Each has its own log file.
type processes struct {
	dir  string
	all  []*launcher.Process
	logs []*os.File
}

// start starts a program, which runs until end is called. Its log file has the given name.
func (p *processes) start(name, program string, args ...string) error {
	c := &launcher.Process{}
	c.Options.Command = append([]string{program}, args...)
	return p.add(name, c, c.Start)
}

// startNode starts a node of Quorate, which runs until end is called. The parameter more has additional arguments.
func (p *processes) startNode(n *launcher.Node, more ...string) error {
	return p.add(n.ID, &n.Process, func() error { return n.Start(more...) })
}

func (p *processes) add(name string, c *launcher.Process, start func() error) error {
	log, err := os.Create(filepath.Join(p.dir, name+".log"))
	if err != nil {
		return err
	}
	p.logs = append(p.logs, log)
	c.Options.Stdout, c.Options.Stderr, c.Options.Dir = log, log, p.dir
	if err := start(); err != nil {
		return err
	}
	p.all = append(p.all, c)
	return nil
}

// cpu returns the total user and system CPU time of all processes and their direct children, from /proc. The
// resolution is 10 ms. It returns false if the time cannot be read.
func (p *processes) cpu() (time.Duration, bool) {
	var pids []string
	for _, c := range p.all {
		id := strconv.Itoa(c.Pid())
		children, err := os.ReadFile("/proc/" + id + "/task/" + id + "/children")
		if err != nil {
			return 0, false
		}
		pids = append(append(pids, id), strings.Fields(string(children))...)
	}
	return cpuTime(pids...)
}

// cpuTime returns the total user and system CPU time of some processes; see processes.cpu.
func cpuTime(pids ...string) (time.Duration, bool) {
	var ticks int64
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

// end kills the processes. Their data is removed with the directory.
func (p *processes) end() {
	for _, c := range p.all {
		c.Kill()
	}
	p.close()
}

// close closes the log files.
func (p *processes) close() {
	for _, log := range p.logs {
		_ = log.Close() // errors do not matter, because the log is read only after a failure
	}
}

// failed adds the last 2000 bytes of each log to an error.
func (p *processes) failed(err error) error {
	logs, _ := filepath.Glob(filepath.Join(p.dir, "*.log")) // the pattern is well formed
	for _, name := range logs {
		if text, readErr := os.ReadFile(name); readErr == nil && len(text) > 0 {
			err = fmt.Errorf("%w\n%s ends with:\n%s", err, filepath.Base(name), text[max(0, len(text)-2000):])
		}
	}
	return err
}

// freePorts returns n ports of 127.0.0.1 that are free now.
func freePorts(n int) ([]string, error) {
	ports, err := listen.Spare(context.Background(), n)
	out := make([]string, len(ports))
	for i, port := range ports {
		out[i] = strconv.Itoa(port)
	}
	return out, err
}

// find returns the absolute path of a program, and creates the directory dir/name for the files of a system. The result
// p uses this directory and has no processes yet. If the program is not found, find returns a *missingError.
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

// startSelf starts this program again as a server, at a free port on 127.0.0.1. role is the name of the flag that makes
// the program a server, for example "proxy". The function value returns the value of this flag for the chosen address.
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
