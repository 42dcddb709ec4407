package cli

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quorate/quorate/cmd/internal/child"
	"github.com/quorate/quorate/node"
)

// application is the command beside the node; without one it only waits for the node.
type application struct {
	process *child.Process // nil = no command
	ended   bool           // by itself, before the node
}

// appPrefix marks what the application prints.
const appPrefix = "== APP == "

// startApp runs the command that belongs to the node.
func (m *Main) startApp(c node.Config, a node.Addresses, log *slog.Logger) (*application, error) {
	if len(c.App.Command) == 0 {
		return &application{}, nil
	}
	p, err := child.Start(child.Options{
		Command: c.App.Command, Env: append(inherited(m.Env), appEnv(c, a)...), Prefix: appPrefix, Stdout: m.Stdout, Stderr: m.Stderr,
	})
	if err != nil {
		return nil, err
	}
	log.Info("the application was started", "command", c.App.Command[0], "pid", p.Pid())
	return &application{process: p}, nil
}

// inherited is the environment without ports of another node: one that this node does not
// have must not look as if it had it.
func inherited(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == "DAPR_HTTP_PORT" || name == "DAPR_GRPC_PORT" || name == "DAPR_METRICS_PORT"
	})
}

// appEnv is what the application is told, under the names that its SDK knows.
func appEnv(c node.Config, a node.Addresses) []string {
	out := []string{"APP_ID=" + c.App.ID, "APP_PROTOCOL=" + string(c.App.Protocol), "APP_CHANNEL_ADDRESS=" + c.App.Address}
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
	if err != nil {
		return ""
	}
	return port
}

// done is closed when the command has ended; never, without one.
func (a *application) done() <-chan struct{} {
	if a.process == nil {
		return nil
	}
	return a.process.Done()
}

// wait returns when the node, the command or ctx ends. The error is the node's.
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

// stopReason says why the node is closed.
func (a *application) stopReason(ctx context.Context) string {
	switch {
	case a.ended:
		return "the application has ended"
	case ctx.Err() != nil:
		return context.Cause(ctx).Error()
	}
	return "asked to through the API"
}

// end stops the command while the node still serves it. The error is that of a command
// that failed by itself, or had to be killed.
func (a *application) end(ctx context.Context, grace time.Duration, log *slog.Logger) error {
	switch {
	case a.process == nil:
		return nil
	case a.ended:
		return a.process.Err()
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := a.process.Stop(limit, signalOf(ctx))
	if err == nil {
		log.Info("the application has ended")
	}
	return err
}

// stopSignal is the cause of a context that a signal ended.
type stopSignal struct{ os.Signal }

// Error names the signal.
func (s stopSignal) Error() string { return "signal " + s.String() }

// signalOf is the signal that ctx ended with, for the application.
func signalOf(ctx context.Context) syscall.Signal {
	var s stopSignal
	if errors.As(context.Cause(ctx), &s) {
		if sig, ok := s.Signal.(syscall.Signal); ok {
			return sig
		}
	}
	return syscall.SIGTERM
}

// environ adds or replaces variables.
func environ(base []string, more map[string]string) []string {
	out := append([]string(nil), base...)
	for name, value := range more {
		out = append(out, name+"="+value)
	}
	return out
}

// shown is a command as a person would write it.
func shown(command []string) string { return strings.Join(command, " ") }
