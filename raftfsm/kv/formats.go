package kv

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"
	"github.com/quorate/quorate/internal/fault"
)

// CheckFormat checks whether this build can read the database. It changes nothing on disk. No other process may use the
// directory during the call. Errors:
//
//   - fault.Invalid if the database was written by a newer version of Quorate or by another program
//   - fault.Unavailable if the directory cannot be read
//
// If there is no database, or if it cannot be opened, CheckFormat returns nil, because Open reports those cases.
func CheckFormat(o Options) error {
	found, err := peek(&o)
	if err != nil || !found {
		return err
	}
	m, err := open(o, func(p *pebble.Options) { p.ErrorIfNotExists, p.ReadOnly = true, true })
	if err != nil {
		return nil //nolint:nilerr // Open says it better
	}
	err = m.checkFormat()
	return keep(err, m.db.Close())
}

func (m *Machine) checkFormat() error {
	raw, closer, err := m.db.Get(metaKey())
	if errors.Is(err, pebble.ErrNotFound) {
		return errForeign()
	}
	if err != nil {
		return nil //nolint:nilerr // Open says it better
	}
	defer closer.Close() //nolint:errcheck // a reference to memory
	if _, err = parseMeta(raw); fault.Is(err, fault.Invalid) {
		return inDir(err, m.dir)
	}
	return nil
}

// inDir adds the directory of the database to an error.
func inDir(err error, dir string) error {
	e, ok := fault.As(err)
	if !ok {
		return err
	}
	named := *e
	named.Key, named.Msg = dir, dir+": "+e.Msg
	return &named
}
