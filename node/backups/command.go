package backups

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// The environment variables of a command, and the values of actionVariable.
const (
	actionVariable = "QUORATE_BACKUP_ACTION"
	nameVariable   = "QUORATE_BACKUP_NAME"

	actionSave   = "save"   // store standard input under the name
	actionRead   = "read"   // write the backup to standard output
	actionRemove = "remove" // remove the backup; there may be none
)

// removeTime is the timeout of a command that removes a backup.
const removeTime = time.Minute

// command stores backups with a program of the user.
type command struct{ args []string }

func (c command) String() string { return "the command " + c.args[0] }

// store implements target.
func (c command) store(ctx context.Context, name string, write func(io.Writer) error) (stored, error) {
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	in, out := io.Pipe()
	wrote := make(chan error, 1)
	go func() {
		err := write(out)
		if err != nil {
			kill() // otherwise the command would take the end of its input for the end of the backup
		}
		_ = out.CloseWithError(err)
		wrote <- err
	}()
	err := c.run(ctx, actionSave, name, in, nil)
	_ = in.CloseWithError(errUnread) // so that write ends
	werr := <-wrote
	one := object{c, name}
	switch {
	case werr != nil && !errors.Is(werr, errUnread):
		err = werr
	case err == nil && werr != nil:
		err = &fault.Error{Code: fault.Unavailable, Op: "backups.command", Msg: c.String() + " failed", Err: werr,
			Hint: "it must read its standard input to the end"}
	}
	if err != nil {
		one.discard()
		return nil, err
	}
	return one, nil
}

var errUnread = errors.New("it ended before it had read the backup")

// run runs the command once. It passes the action and the name of the backup in environment variables. in and out are
// the standard input and output of the command.
func (c command) run(ctx context.Context, action, name string, in io.Reader, out io.Writer) error {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...) //nolint:gosec // the operator chose the command
	cmd.Env = append(cmd.Environ(), actionVariable+"="+action, nameVariable+"="+name)
	cmd.Stdin, cmd.Stdout = in, out
	printed := &tail{}
	cmd.Stderr = printed
	cmd.WaitDelay = 5 * time.Second // the wait for child processes of the command that keep its pipes open
	err := cmd.Run()
	if err == nil {
		return nil
	}
	msg := fmt.Sprintf("%s failed (%s=%s)", c, actionVariable, action)
	if text := printed.String(); text != "" {
		msg += ": " + text
	}
	hint := "run it by hand with the same variables, as the user of the node"
	if errors.Is(err, exec.ErrNotFound) {
		hint = "give the whole path of the program"
	}
	return &fault.Error{Code: fault.Unavailable, Op: "backups.command", Msg: msg, Err: err, Hint: hint}
}

// trim implements target.
func (c command) trim(ctx context.Context, names []string, keep int) ([]string, error) {
	var left []string
	var errs []error
	for i, name := range names {
		if i < len(names)-keep {
			ctx, cancel := context.WithTimeout(ctx, removeTime)
			err := c.run(ctx, actionRemove, name, nil, nil)
			cancel()
			if errs = append(errs, err); err == nil {
				continue
			}
		}
		left = append(left, name)
	}
	return left, errors.Join(errs...)
}

// object is a backup that a command has stored.
type object struct {
	command command
	name    string
}

func (o object) read(ctx context.Context, use func(io.Reader) error) error {
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	in, out := io.Pipe()
	ran := make(chan error, 1)
	go func() {
		err := o.command.run(ctx, actionRead, o.name, nil, out)
		_ = out.CloseWithError(err)
		ran <- err
	}()
	err := use(in)
	if err != nil {
		kill()
	}
	_ = in.CloseWithError(io.ErrClosedPipe)
	if rerr := <-ran; rerr != nil && (err == nil || errors.Is(err, rerr)) {
		return rerr
	}
	return err
}

func (o object) publish() error { return nil }

// discard removes an incomplete or wrong backup. It ignores errors, because the caller already reports a failed
// backup.
func (o object) discard() {
	ctx, cancel := context.WithTimeout(context.Background(), removeTime)
	defer cancel()
	_ = o.command.run(ctx, actionRemove, o.name, nil, nil)
}

// tail keeps the last maxTail bytes of what a command prints to standard error.
type tail struct{ buf []byte }

const maxTail = 500

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - maxTail; extra > 0 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	return len(p), nil
}

// String returns the text in one line.
func (t *tail) String() string {
	return strings.Join(strings.Fields(string(bytes.ToValidUTF8(t.buf, nil))), " ")
}
