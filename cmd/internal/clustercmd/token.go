package clustercmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/internal/userfile"
)

func (m *commands) tokenCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "token",
		Short: "Make cluster tokens",
		RunE:  command.Group,
	}
	c.AddCommand(m.tokenCreateCommand())
	return c
}

// created is the JSON output of token create.
type created struct {
	Token       string `json:"token,omitempty"` // empty if the token was written to a file
	File        string `json:"file,omitempty"`
	Fingerprint string `json:"fingerprint"`
}

func (m *commands) tokenCreateCommand() *cobra.Command {
	var out command.Output
	var path string
	var ifMissing bool
	c := &cobra.Command{
		Use:   "create [flags]",
		Short: "Make a cluster token",
		Long: "Make a cluster token. Anyone who has it can join the cluster and read and change\n" +
			"everything. Distribute it as a file that only the user of the node can read, and name this\n" +
			"file with --cluster-token-file on every node. --file makes such a file; a shell redirection makes\n" +
			"one that others can read. Logs and status show only its fingerprint.",
		Example: "  quorate token create --file /etc/quorate/token",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if ifMissing && path == "" {
				return command.Usagef("--if-missing needs --file")
			}
			if ifMissing {
				if done, err := m.keepToken(path, out.JSON()); done || err != nil {
					return err
				}
			}
			t := trust.NewToken()
			r := created{Token: t.Reveal(), File: path, Fingerprint: t.Fingerprint()}
			if path != "" {
				if err := writeToken(path, t); err != nil {
					return err
				}
				r.Token = ""
			}
			switch {
			case out.JSON():
				return command.WriteJSON(m.Stdout, r)
			case path != "":
				_, err := fmt.Fprintf(m.Stdout, "cluster token %s is in %s\n", r.Fingerprint, path)
				return err
			}
			_, err := fmt.Fprintln(m.Stdout, r.Token)
			return err
		},
	}
	c.Flags().StringVar(&path, "file", "", "write it to a new `file` that only this user can read")
	c.Flags().BoolVar(&ifMissing, "if-missing", false, "do nothing if the file already contains a token")
	out.Bind(c)
	return c
}

// keepToken reports whether the file at path already has a cluster token. If so, keepToken prints the fingerprint of
// the token, and the caller must keep the file. If the file cannot be read or has no token, keepToken returns an error.
func (m *commands) keepToken(path string, asJSON bool) (bool, error) {
	text, err := userfile.ReadOnce(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, &fault.Error{Code: fault.Invalid, Op: "cli.token", Key: path, Msg: path + " cannot be read",
			Err: command.RootCause(err)}
	}
	tokens, err := trust.ParseTokens(text)
	if err != nil {
		return false, &fault.Error{Code: fault.Invalid, Op: "cli.token", Key: path,
			Msg: path + " contains no cluster token", Hint: "remove the file, or name another", Err: err}
	}
	r := created{File: path, Fingerprint: tokens[0].Fingerprint()}
	if asJSON {
		return true, command.WriteJSON(m.Stdout, r)
	}
	_, err = fmt.Fprintf(m.Stdout, "cluster token %s was already in %s\n", r.Fingerprint, path)
	return true, err
}

// writeToken creates a token file. It never replaces a file, because nodes may use it.
func writeToken(path string, t trust.Token) error {
	bad := func(msg, hint string, err error) error {
		return &fault.Error{Code: fault.Invalid, Op: "cli.token", Key: path, Msg: path + " " + msg, Hint: hint,
			Err: err}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return bad("already exists", "choose another file; to rotate the token, put both tokens in one file", nil)
	case err != nil:
		return bad("cannot be made", "", command.RootCause(err))
	}
	_, err = fmt.Fprintln(f, t.Reveal())
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(bad("cannot be written", "", command.RootCause(err)), os.Remove(path))
	}
	return nil
}
