package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/quorate/quorate/cmd/internal/cli"
	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/lab/internal/tuned"
	"github.com/quorate/quorate/node"
)

// quorate runs the quorate command with the test settings in text. It returns the exit code.
func quorate(text string) int {
	opener, err := tuned.New(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	m := cli.Main{
		Shell: &command.Shell{
			Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
			Version: command.Version{Version: "test"},
			Signals: func() (<-chan os.Signal, func()) {
				c := make(chan os.Signal, 2)
				signal.Notify(c, syscall.SIGINT, syscall.SIGTERM)
				return c, func() { signal.Stop(c) }
			},
		},
		Args: os.Args[1:],
		Open: func(ctx context.Context, settings node.Config, log *slog.Logger) (cli.Node, error) {
			n, err := opener.Open(ctx, settings, log)
			if err != nil {
				return nil, err // a nil *node.Node in a cli.Node would not be nil
			}
			return n, nil
		},
	}
	return m.Run(context.Background())
}
