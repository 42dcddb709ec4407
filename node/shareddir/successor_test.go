package shareddir_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/hostshare"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/node/shareddir"
)

// fakeNode is a node whose end a test decides.
type fakeNode struct {
	ended chan error
	once  sync.Once
}

func (n *fakeNode) Note() hostshare.Note { return hostshare.Note{Node: "n"} }
func (n *fakeNode) MetricsAddr() string  { return "" }

func (n *fakeNode) Wait(ctx context.Context) error {
	select {
	case err := <-n.ended:
		return err
	case <-ctx.Done():
		return nil
	}
}

func (n *fakeNode) Close(context.Context) error {
	n.once.Do(func() { close(n.ended) })
	return nil
}

// A node that waits for the directory is not affected if it cannot open the lock file for a while.
func TestShared_WaitsWhileTheLockCannotBeOpened(t *testing.T) {
	h := newHost(t)
	var log testutil.Output
	o := shareddir.Options{Dir: filepath.Join(h.state, "data"), RuntimeDir: h.run,
		Opener: fakeOpener{make(chan *fakeNode, 1), nil}, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	first, err := shareddir.Open(t.Context(), o)
	testutil.Must(t, err)
	second, err := shareddir.Open(t.Context(), o)
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, second.Close(context.Background())) })
	ended := make(chan error, 1)
	go func() { ended <- second.Wait(t.Context()) }()

	lock := o.Dir + ".holder"
	testutil.Must(t, os.Link(lock, lock+".away"))
	testutil.Must(t, os.Symlink(filepath.Base(lock), lock+".loop"))
	// One rename, because the second node would create a missing lock file and lock it.
	testutil.Must(t, os.Rename(lock+".loop", lock))
	testutil.Eventually(t, func() error {
		if !strings.Contains(log.String(), "cannot be locked; trying again") {
			return errors.New("the failure is not logged")
		}
		return nil
	})
	testutil.Must(t, os.Rename(lock+".away", lock))
	testutil.Must(t, first.Close(t.Context()))
	select {
	case <-o.Opener.(fakeOpener).successors:
	case err := <-ended:
		t.Errorf("ended with %v", err)
	case <-time.After(testutil.Patience):
		t.Error("it does not take the directory over")
	}
}

// fakeOpener opens fake nodes. It sends each opened successor to the channel successors. If the channel busy has an
// error, the next attempt to open a successor fails with this error.
type fakeOpener struct {
	successors chan *fakeNode
	busy       chan error
}

func (o fakeOpener) Open(_ context.Context, p shareddir.Plan) (shareddir.Node, error) {
	n := &fakeNode{ended: make(chan error, 1)}
	if p.Part == shareddir.Successor {
		select {
		case err := <-o.busy:
			return nil, err
		default:
		}
		o.successors <- n
	}
	return n, nil
}

// Shared.Wait returns when the server that has taken over the directory ends, for example on the request of an
// operator.
func TestShared_EndsWithItsSuccessor(t *testing.T) {
	broken := errors.New("its node id is used twice")
	for name, reason := range map[string]error{"on request": nil, "with an error": broken} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			busy := make(chan error, 1) // so that the first attempt to take over fails
			busy <- fault.New(fault.Unavailable, "test", "the directory is locked")
			o := shareddir.Options{Dir: filepath.Join(h.state, "data"), RuntimeDir: h.run,
				Opener: fakeOpener{make(chan *fakeNode, 1), busy}, Logger: slog.New(slog.DiscardHandler)}
			open := func() *shareddir.Shared {
				s, err := shareddir.Open(t.Context(), o)
				testutil.Must(t, err)
				t.Cleanup(func() { testutil.Must(t, s.Close(context.Background())) })
				return s
			}
			first, second := open(), open()
			ended := make(chan error, 1)
			go func() { ended <- second.Wait(t.Context()) }()
			testutil.Must(t, first.Close(t.Context()))
			successor := <-o.Opener.(fakeOpener).successors
			successor.ended <- reason
			select {
			case err := <-ended:
				if !errors.Is(err, reason) {
					t.Errorf("ended with %v, want %v", err, reason)
				}
			case <-time.After(testutil.Patience):
				t.Error("it goes on without the server")
			}
		})
	}
}
