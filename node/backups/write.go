package backups

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/backup"
)

// target stores backups.
type target interface {
	fmt.Stringer
	// store creates the backup with the given name. It calls write to get the content. In a directory, the backup has a
	// temporary name until stored.publish.
	store(ctx context.Context, name string, write func(io.Writer) error) (stored, error)
	// trim removes old backups, so that only the newest ones remain. keep is how many remain. names are the backups
	// that a command has stored, oldest first. trim returns those of them that remain.
	trim(ctx context.Context, names []string, keep int) ([]string, error)
}

// stored is a backup that is stored completely.
type stored interface {
	// read passes the stored backup to f.
	read(ctx context.Context, f func(io.Reader) error) error
	// publish gives the backup its final name.
	publish() error
	// discard removes the backup, or its temporary file.
	discard()
}

// made is a backup that was written. The field Verified is true if it was also verified.
type made struct {
	saved
	stored stored
}

// timeForm is the layout of the time in the name of a backup.
const timeForm = "20060102T150405Z"

// write writes a backup, and verifies it if Config.Verify is true. If only the verification fails, write returns both
// the backup and the error.
func (s *Schedule) write(ctx context.Context, begin time.Time) (*made, error) {
	keys, err := backup.ReadKeyFile("backup: keyFile", s.opts.KeyFile)
	if err != nil {
		return nil, err
	}
	m := &made{saved: saved{Name: s.opts.Prefix + "-" + begin.UTC().Format(timeForm) + ".qs", Node: s.opts.Node,
		Time: begin.UTC()}}
	size := &counter{}
	m.stored, err = s.target.store(ctx, m.Name, func(w io.Writer) error {
		size.w = w
		return s.seal(ctx, size, keys)
	})
	if err != nil {
		return nil, err
	}
	m.Bytes = size.bytes
	if !s.opts.Verify {
		return m, nil
	}
	err = m.stored.read(ctx, func(r io.Reader) error {
		m.Keys, err = verify(r, keys)
		return err
	})
	if err != nil {
		return m, fault.Wrap(err, "backups.verify", "the backup was written to "+s.target.String()+
			", but reading it back failed")
	}
	m.Verified = true
	return m, nil
}

// seal writes a backup to w. If there are keys, it encrypts the backup with the first one.
func (s *Schedule) seal(ctx context.Context, w io.Writer, keys []backup.Key) error {
	if len(keys) == 0 {
		return s.opts.Cluster.SaveBackup(ctx, w)
	}
	e, err := backup.Encrypt(w, keys[0])
	if err != nil {
		return err
	}
	if err := s.opts.Cluster.SaveBackup(ctx, e); err != nil {
		return err
	}
	return e.Close()
}

// verify reads a backup to its end, checks every checksum, and returns how many stored keys the backup contains. The
// parameter keys has the keys that can decrypt the backup.
func verify(r io.Reader, keys []backup.Key) (uint64, error) {
	source, err := backup.Decrypt(r, keys, false)
	if err != nil {
		return 0, err
	}
	sum, err := backup.Inspect(source, func(id string) (string, string) { return "", id })
	return sum.Totals.Keys, err
}

// counter counts the bytes that are written to w.
type counter struct {
	w     io.Writer
	bytes int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.bytes += int64(n)
	return n, err
}
