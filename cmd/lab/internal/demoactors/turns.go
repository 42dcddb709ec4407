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

// turns detects turns of one actor that overlap, also in different processes. Each turn locks a file of its actor and
// adds one byte to it. If the process dies, the kernel unlocks the file. turns is safe for concurrent use.
type turns struct{ dir string }

// overlaps is the name of the file with a line for each turn that has overlapped.
const overlaps = "overlaps"

// begin begins a turn. It returns an error if another turn of the actor has not ended.
func (t turns) begin(actor string) (end func(), err error) {
	f, err := t.add(actor)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		note, noteErr := t.add(overlaps)
		if noteErr == nil {
			_, noteErr = fmt.Fprintln(note, actor)
			noteErr = errors.Join(noteErr, note.Close())
		}
		return nil, errors.Join(fmt.Errorf("two turns of %s overlap: %w", actor, err), noteErr, f.Close())
	}
	if _, err := f.WriteString("."); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // unlocks it
}

// add opens a file to add to it.
func (t turns) add(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(t.dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// count returns the number of turns, and an error if some have overlapped.
func (t turns) count() (n int64, err error) {
	if text, err := os.ReadFile(filepath.Join(t.dir, overlaps)); err == nil {
		return 0, fmt.Errorf("turns of these actors have overlapped:\n%s", text)
	}
	files, err := os.ReadDir(t.dir)
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			return 0, err
		}
		n += info.Size()
	}
	return n, nil
}
