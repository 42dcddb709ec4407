package demoactors

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// turnsVariable is the environment variable with the directory of the turns.
const turnsVariable = "DEMO_TURNS"

// turns detects overlapping turns of one actor, even if they run in different processes. Each turn locks a file of its
// actor and epoch. The epoch identifies the owner of the actor. If the process dies, the kernel unlocks the file. turns
// is safe for concurrent use.
//
// Turns with the same epoch must not overlap. Turns with different epochs may overlap, because a host can lose its
// lease to another host while a turn runs. This is harmless: the store refuses the writes of the old turn. The file
// besideFile counts these overlaps.
type turns struct{ dir string }

// The names of the files:
//
//   - allFile has one byte for each turn.
//   - besideFile has one byte for each turn that began while a turn of an earlier owner was running.
//   - overlapFile has one line for each turn that should not have begun.
const (
	allFile     = "all"
	besideFile  = "beside"
	overlapFile = "overlaps"
)

// begin records the start of a turn, and returns a function that ends the turn. The epoch identifies the owner of
// the actor. begin returns an error if epoch is empty, or if another turn of the actor with the same epoch has not
// ended.
func (t turns) begin(actor, epoch string) (end func(), err error) {
	if epoch == "" {
		return nil, errors.Join(fmt.Errorf("a turn of %s has no epoch", actor),
			t.note(overlapFile, actor+", no epoch\n"))
	}
	owner, err := t.add(actor + "@" + epoch)
	if err != nil {
		return nil, err
	}
	every, err := t.add(actor)
	if err != nil {
		return nil, errors.Join(err, owner.Close())
	}
	end = func() { // unlocks both
		_ = every.Close()
		_ = owner.Close()
	}
	if err := lock(owner); err != nil {
		end()
		return nil, errors.Join(fmt.Errorf("two turns of %s with epoch %s overlap: %w", actor, epoch, err),
			t.note(overlapFile, actor+", epoch "+epoch+"\n"))
	}
	err = t.note(allFile, ".")
	if lock(every) != nil {
		err = errors.Join(err, t.note(besideFile, "."))
	}
	if err != nil {
		end()
		return nil, err
	}
	return end, nil
}

func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// add opens a file in the directory of the turns for appending.
func (t turns) add(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(t.dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// note appends a text to a file in the directory of the turns.
func (t turns) note(name, text string) error {
	f, err := t.add(name)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// count returns the number of turns, and the number of turns that began while a turn of an earlier owner was running.
// It returns an error if turns of one owner have overlapped.
func (t turns) count() (n, beside int64, err error) {
	if text, err := os.ReadFile(filepath.Join(t.dir, overlapFile)); err == nil {
		return 0, 0, fmt.Errorf("turns of these actors have overlapped:\n%s", text)
	}
	for name, size := range map[string]*int64{allFile: &n, besideFile: &beside} {
		info, err := os.Stat(filepath.Join(t.dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return 0, 0, err
		}
		*size = info.Size()
	}
	return n, beside, nil
}
