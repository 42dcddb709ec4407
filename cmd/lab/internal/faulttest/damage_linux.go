package faulttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Part is a part of a server's data directory.
type Part string

// The parts.
const (
	LogPart      Part = "log"
	VotePart     Part = "vote"
	ManifestPart Part = "manifest"
	DatabasePart Part = "database"
	IdentityPart Part = "identity"
)

// has reports whether a file, relative to the data directory, belongs to the part.
func (p Part) has(path string) bool {
	base := filepath.Base(path)
	database := strings.Contains(path, "/db-")
	switch p {
	case LogPart:
		return base == "log.db" || strings.Contains(path, "/wal/")
	case VotePart:
		return base == "stable.db"
	case ManifestPart:
		return base == "manifest.json"
	case DatabasePart: // it is also the snapshot
		return database && (strings.HasSuffix(base, ".sst") || strings.HasSuffix(base, ".log") ||
			strings.HasPrefix(base, "MANIFEST"))
	case IdentityPart:
		return base == "node.json"
	}
	return false
}

// files returns the non-empty files of a part.
func (n *Node) files(p Part) (out []string, err error) {
	err = filepath.WalkDir(n.DataDir(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !p.has(path) {
			return err
		}
		if info, err := d.Info(); err == nil && info.Size() > 0 {
			out = append(out, path)
		}
		return nil
	})
	return out, err
}

// used returns the length of b without its trailing zero bytes, but at least 1. Log files end in zeros because they are
// preallocated.
func used(b []byte) int { return max(len(bytes.TrimRight(b, "\x00")), 1) }

// damages returns the ways to damage a file by their names. Each function returns the damaged content of b.
func damages() map[string]func(b []byte, rnd *rand.Rand) []byte {
	return map[string]func(b []byte, rnd *rand.Rand) []byte{
		"a bit flipped": func(b []byte, rnd *rand.Rand) []byte {
			b[rnd.IntN(used(b))] ^= 1 << rnd.IntN(8)
			return b
		},
		"a page zeroed": func(b []byte, rnd *rand.Rand) []byte {
			const page = 4096
			at := rnd.IntN(used(b)) / page * page
			clear(b[at:min(at+page, len(b))])
			return b
		},
		"the end torn off": func(b []byte, rnd *rand.Rand) []byte {
			return b[:used(b)-1-rnd.IntN(min(used(b), 16<<10))]
		},
	}
}

// Damages returns the names of the ways to damage a file.
func Damages() []string { return []string{"a bit flipped", "a page zeroed", "the end torn off"} }

// Damage returns a fault that kills a server and damages a random file in one part of its data. Damages lists the
// possible kinds. When the fault ends, the server is started with the damaged data. It must then either refuse to
// serve, or serve the same data as the other servers.
//
// If it serves different data, ending the fault returns a Broken error. Otherwise the server is restarted with an empty
// disk.
func Damage(p Part, kind string) Fault {
	return fault(fmt.Sprintf("%s: %s", p, kind),
		func(ctx context.Context, c *Cluster, rnd *rand.Rand) (func(context.Context) error, error) {
			leader, n, _, err := leaderAndOne(ctx, c, rnd)
			if err != nil {
				return nil, err
			}
			if rnd.IntN(3) == 0 {
				n = leader
			}
			if err := n.Kill(); err != nil {
				return nil, err
			}
			files, err := n.files(p)
			if err != nil || len(files) == 0 {
				return nil, errors.Join(err, fmt.Errorf("%s has no file of its %s", n.Name, p))
			}
			path := files[rnd.IntN(len(files))]
			b, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			size := len(b)
			if err := os.WriteFile(path, damages()[kind](b, rnd),
				0o600); err != nil { //nolint:gosec // found below the data directory
				return nil, err
			}
			n.Mark(fmt.Sprintf("%s: %s", path, kind))
			return func(ctx context.Context) error {
				return c.onDamage(ctx, n, fmt.Sprintf("%s of %d bytes, %s", filepath.Base(path), size, kind))
			}, nil
		})
}

// refusalTime is how long a damaged server may take to refuse or to serve.
const refusalTime = 20 * time.Second

// onDamage starts a server whose data was damaged. If the server serves different data than the other servers, onDamage
// returns a Broken error. Otherwise it restarts the server with an empty disk. The parameter damage describes the
// damage in messages.
func (c *Cluster) onDamage(ctx context.Context, n *Node, damage string) error {
	if err := n.Start(); err != nil {
		return err
	}
	err := n.healthyWithin(ctx, refusalTime)
	switch {
	case errors.Is(err, errEnded):
		c.tell("%s refused %s: it ended itself", n.Name, damage)
	case err != nil:
		c.tell("%s does not serve on %s: %v", n.Name, damage, err)
	default:
		limit, cancel := context.WithTimeout(ctx, patience)
		differs := c.Quiet(func() error { return c.Agree(limit) })
		cancel()
		switch {
		case !n.Running():
			c.tell("%s ended itself when %s was read", n.Name, damage)
		case differs != nil:
			return &Broken{"a damaged server serves what the others hold, or nothing",
				fmt.Sprintf("%s serves on %s: %v", n.Name, damage, differs)}
		default:
			c.tell("%s serves what the others hold on %s", n.Name, damage)
		}
	}
	return errors.Join(n.Kill(), n.Anew(), n.Start())
}
