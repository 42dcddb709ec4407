package backupcmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/userfile"
	"github.com/quorate/quorate/raftfsm/backup"
)

// KeyEnv is the environment variable with the path of the key file.
const KeyEnv = "QUORATE_BACKUP_KEY_FILE"

// backupKey holds the flags for the key of a backup.
type backupKey struct {
	path  string // empty = no key
	plain bool   // accept a backup that is not encrypted although a key is given
}

func (m *commands) newBackupKey() *backupKey { return &backupKey{path: m.Getenv(KeyEnv)} }

// bind adds the flag for the key.
func (k *backupKey) bind(c *cobra.Command) {
	fromEnv := k.path
	c.Flags().StringVar(&k.path, "backup-key-file", "",
		"`file` with the key that encrypts and authenticates backups (env "+KeyEnv+")")
	k.path = fromEnv
}

// bindReading adds the flags of commands that read a backup.
func (k *backupKey) bindReading(c *cobra.Command) {
	k.bind(c)
	c.Flags().BoolVar(&k.plain, "allow-unencrypted", false,
		"accept a backup that is not encrypted although a key is given")
}

// read returns the keys in the key file. If no key file is given, it returns no keys. The file may be a pipe, as in
// <(program).
func (k *backupKey) read() ([]backup.Key, error) {
	if info, err := os.Stat(k.path); err == nil && info.Mode()&fs.ModeNamedPipe != 0 {
		text, err := userfile.ReadOnce(k.path)
		if err != nil {
			return nil, fault.Wrap(err, "cli.backup", "--backup-key-file")
		}
		keys, err := backup.ParseKeys(text)
		return keys, fault.Wrap(err, "cli.backup", "--backup-key-file "+k.path+" cannot be used")
	}
	return backup.ReadKeyFile("--backup-key-file", k.path)
}

func (m *commands) backupKeygenCommand() *cobra.Command {
	path := ""
	c := &cobra.Command{
		Use:   "keygen [flags]",
		Short: "Make a key that encrypts and authenticates backups",
		Long: "Make a key that encrypts and authenticates backups. Anyone who has it can read your backups\n" +
			"and forge them. Without it, no one can read an encrypted backup.\n" +
			"Keep a copy outside the cluster. The key is also the passphrase with which the age program\n" +
			"decrypts the file.",
		Example: "  quorate backup keygen --file /etc/quorate/backup-key\n" +
			"  umask 077; quorate backup keygen > backup-key",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			key := backup.NewKey()
			if path == "" {
				_, err := fmt.Fprintln(m.Stdout, key.Reveal())
				return err
			}
			if err := writeBackupKey(path, key); err != nil {
				return err
			}
			_, err := fmt.Fprintf(m.Stdout, "A new backup key is in %s.\n", path)
			return err
		},
	}
	c.Flags().StringVar(&path, "file", "", "write it to a new `file` that only this user can read")
	return c
}

// writeBackupKey creates a key file. It never overwrites a file, because earlier backups may need the key in it.
func writeBackupKey(path string, key backup.Key) error {
	bad := func(msg, hint string, err error) error {
		return &fault.Error{Code: fault.Invalid, Op: "cli.backup", Key: path, Msg: path + " " + msg, Hint: hint,
			Err: err}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return bad("exists", "choose another file; to rotate the key, put the new one on a line before the old one",
			nil)
	case err != nil:
		return bad("cannot be made", "", command.RootCause(err))
	}
	_, err = fmt.Fprintln(f, key.Reveal())
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(bad("cannot be written", "", command.RootCause(err)), os.Remove(path))
	}
	return nil
}
