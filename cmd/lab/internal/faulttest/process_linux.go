package faulttest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Program is the program of the nodes: quorate, or one with the same command line.
type Program struct {
	Path string
	Env  []string // added to the environment
}

// process is one incarnation of a node.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
}

// start starts the program in the network namespace ns. The OS thread of ns starts it, so the kernel kills the process
// when this thread ends. start adds env to the environment of the process, and appends its output to the file log.
func (p Program) start(ns *namespace, log *os.File, env, args []string) (*process, error) {
	cmd := exec.Command(p.Path, args...) //nolint:gosec // what the caller wants to test
	cmd.Env = append(append(os.Environ(), p.Env...), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := ns.do(cmd.Start); err != nil {
		return nil, err
	}
	life := &process{cmd: cmd, ended: make(chan struct{})}
	go func() {
		defer close(life.ended)
		_ = cmd.Wait() // its state tells how it ended
	}()
	return life, nil
}

func (p *process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// kill ends the process with SIGKILL and waits until it has ended. It returns an error if that takes longer than
// patience. A hanging disk can delay the end.
func (p *process) kill(patience time.Duration) error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	return p.wait(patience)
}

func (p *process) wait(patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
		return fmt.Errorf("process %d goes on after %s", p.cmd.Process.Pid, patience)
	}
}

func (p *process) gone() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}
