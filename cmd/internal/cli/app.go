package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quorate/quorate/internal/child"
	"github.com/quorate/quorate/node"
)

// application is the user's command that runs together with the node. If there is no command, its methods do nothing.
type application struct {
	process *child.Process // nil = no command
	ended   bool           // the command has ended by itself, before the node
}

// appPrefix precedes each line that the application prints.
const appPrefix = "== APP == "

// startApp starts the command of the node, if it has one. The output of the command is also copied to the given writer.
func (m *Main) startApp(c node.Config, a node.Addresses, output io.Writer, log *slog.Logger) (*application, error) {
	if len(c.App.Command) == 0 {
		return &application{}, nil
	}
	p, err := child.Start(child.Options{
		Command: c.App.Command, Env: append(inherited(m.Env), appEnv(c, a)...), Prefix: appPrefix, Stdout: m.Stdout,
		Stderr: m.Stderr, Copy: output,
	})
	if err != nil {
		return nil, err
	}
	log.Info("the application was started", "command", c.App.Command[0], "pid", p.Pid())
	return &application{process: p}, nil
}

// inherited returns env without the variables for the ports of a node. If another node has started this process, these
// variables have the ports of that node, and the application would call the wrong node.
func inherited(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == "DAPR_HTTP_PORT" || name == "DAPR_GRPC_PORT" || name == "DAPR_METRICS_PORT"
	})
}

// appEnv returns the environment variables that describe the node to its application, with the names that Dapr SDKs
// read.
func appEnv(c node.Config, a node.Addresses) []string {
	out := []string{"APP_ID=" + c.App.ID, "APP_PROTOCOL=" + string(c.App.Protocol),
		"APP_CHANNEL_ADDRESS=" + c.App.Address}
	if c.App.Port != 0 {
		out = append(out, "APP_PORT="+strconv.Itoa(c.App.Port))
	}
	if len(a.API) > 0 {
		out = append(out, "DAPR_HTTP_PORT="+portOf(a.API[0]))
	}
	if len(a.GRPC) > 0 {
		out = append(out, "DAPR_GRPC_PORT="+portOf(a.GRPC[0]))
	}
	if a.Metrics != "" {
		out = append(out, "DAPR_METRICS_PORT="+portOf(a.Metrics))
	}
	return out
}

func portOf(addr string) string {
	_, port, err := net.SplitHostPort(addr)
	if err != nil || strings.HasPrefix(addr, "unix:") {
		return ""
	}
	return port
}

// done returns a channel that is closed when the command has ended. If there is no command, it returns a nil channel,
// which is never ready.
func (a *application) done() <-chan struct{} {
	if a.process == nil {
		return nil
	}
	return a.process.Done()
}

// wait returns when the node, the command or ctx ends. It returns the error of the node.
func (a *application) wait(ctx context.Context, n Node) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- n.Wait(ctx) }()
	select {
	case err := <-failed:
		return err
	case <-a.done():
		a.ended = true
		cancel()
		return <-failed
	}
}

// stopReason returns why the node is closed, for the log.
func (a *application) stopReason(ctx context.Context) string {
	switch {
	case a.ended:
		return "the application has ended"
	case ctx.Err() != nil:
		return context.Cause(ctx).Error()
	}
	return "requested through the API"
}

// end stops the command of the application. Call it before the node stops, because the command may still send requests
// to the node. end returns an error if the command had already failed, or if it did not end within grace and was
// killed.
func (a *application) end(ctx context.Context, grace time.Duration, log *slog.Logger) error {
	switch {
	case a.process == nil:
		return nil
	case a.ended && a.process.Err() != nil:
		return &appError{a.process.Err(), a.process.ExitCode()}
	case a.ended:
		return nil
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := a.process.Stop(limit, signalOf(ctx))
	if err == nil {
		log.Info("the application has ended")
	}
	return err
}

// appError is the error of a failed application that quorate has started. If the exit code of the application is
// positive, quorate exits with the same code.
type appError struct {
	error
	code int
}

// Unwrap returns the error of the command.
func (e *appError) Unwrap() error { return e.error }

// stopSignal is the cause of a context that was cancelled by a signal.
type stopSignal struct{ os.Signal }

// Error returns the name of the signal.
func (s stopSignal) Error() string { return "signal " + s.String() }

// signalOf returns the signal to send to the application: the one that cancelled ctx, or otherwise SIGTERM.
func signalOf(ctx context.Context) syscall.Signal {
	var s stopSignal
	if errors.As(context.Cause(ctx), &s) {
		if sig, ok := s.Signal.(syscall.Signal); ok {
			return sig
		}
	}
	return syscall.SIGTERM
}

// environ returns base with the variables of more added or replaced.
func environ(base []string, more map[string]string) []string {
	out := append([]string(nil), base...)
	for name, value := range more {
		out = append(out, name+"="+value)
	}
	return out
}

// shown returns a command and its arguments as one text for the log.
func shown(command []string) string { return strings.Join(command, " ") }
