package statecmd

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/statecopy"
	"github.com/quorate/quorate/component/builtin"
	"github.com/quorate/quorate/component/loader"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/node"
)

// sourceFlags are the flags of state copy for the store to read.
type sourceFlags struct {
	store string
	paths []string // component files that declare the store; none = the node has the store
	owner state.Owner
}

func (f *sourceFlags) bind(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.store, "from", "", "`store` to read; required")
	fl.StringArrayVar(&f.paths, "resources-path", nil, "`path` of a file or directory with the component of --from, "+
		"which this command opens itself; may be repeated")
	fl.StringVar(&f.owner.App, "from-app", "",
		"`id` of the application in the store of --resources-path (default: the application of the node)")
	fl.StringVar(&f.owner.Namespace, "from-namespace", "",
		"`namespace` of the application in the store of --resources-path")
}

func (f *sourceFlags) check() error {
	if len(f.paths) == 0 && f.owner != (state.Owner{}) {
		return command.Usagef("--from-app and --from-namespace need --resources-path (a node has only the keys of " +
			"its own application)")
	}
	return nil
}

// timed is a store that this process has opened. When Read finds a value that expires, it calls check, which compares
// the clocks of this process and the node. See stateClient.checkClock.
type timed struct {
	*statecopy.Opened
	check func() error
}

// Read implements statecopy.Source.
func (s timed) Read(ctx context.Context, keys []string) (map[string]statecopy.Value, error) {
	values, err := s.Opened.Read(ctx, keys)
	for _, v := range values {
		if !v.Expires.IsZero() {
			err = cmp.Or(err, s.check())
			break
		}
	}
	return values, err
}

// name returns the name of the store in reports.
func (f *sourceFlags) name() string {
	if len(f.paths) == 0 {
		return f.store
	}
	return f.store + " of " + strings.Join(f.paths, ", ")
}

// open opens the store in this process. The caller must call done when it has finished.
func (f *sourceFlags) open(ctx context.Context, m *commands, app string) (s *statecopy.Opened, done func() error,
	err error) {
	owner := state.Owner{App: cmp.Or(f.owner.App, app), Namespace: f.owner.Namespace, Store: f.store}
	types, err := builtin.Factories(loader.Factories{})
	if err != nil {
		return nil, nil, err
	}
	set, i, err := loader.OpenStateStore(ctx, loader.Options{
		Paths: f.paths, Apps: []string{owner.App}, Namespace: owner.Namespace, Factories: types, UUID: uuid.NewString,
		Env: m.LookupEnv, Environ: func() []string { return m.Env }, Logger: command.NewLogger(m.Stderr, node.Log{}),
	}, f.store)
	if err != nil {
		return nil, nil, err
	}
	if s, err = statecopy.NewOpened(i, owner); err != nil {
		return nil, nil, errors.Join(err, set.Close())
	}
	return s, set.Close, nil
}
