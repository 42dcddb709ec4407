package redis

import (
	"context"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/quorate/quorate/component/state"
)

// List implements state.Lister.
func (s *Store) List(ctx context.Context, r state.ListRequest) (state.Page, error) {
	return s.listing.Page(ctx, r, "")
}

// unordered implements outside.Unordered: Redis does not order keys.
type unordered struct{ *Store }

// Scan implements outside.Unordered.
func (s unordered) Scan(ctx context.Context, prefix string, _ map[string]string, found func([]string)) error {
	const op = "redis.List"
	if err := given(ctx, op); err != nil {
		return err
	}
	err := s.scan(ctx, s.pattern(prefix), func(names []string) {
		keys := make([]string, 0, len(names))
		for _, name := range names {
			if key, ok := s.stored(name); ok {
				keys = append(keys, key)
			}
		}
		found(keys)
	})
	if err != nil {
		return s.failed(op, "", err, false)
	}
	return nil
}

// Describe implements outside.Unordered.
func (s unordered) Describe(ctx context.Context, keys []string, _ map[string]string) ([]state.Item, error) {
	return s.items(ctx, "redis.List", keys, false)
}

// pattern returns the pattern for SCAN that finds at least all keys with a prefix.
func (s *Store) pattern(prefix string) string {
	if s.settings.hashTags && !strings.Contains(prefix, state.Separator) {
		return "*"
	}
	return globEscaper.Replace(s.name(prefix)) + "*"
}

var globEscaper = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`, `-`, `\-`)

// scan finds the names of all keys that match a pattern, and passes them to f in several calls. A name may occur
// several times. The calls are not concurrent.
func (s *Store) scan(ctx context.Context, pattern string, f func(names []string)) error {
	one := func(ctx context.Context, c goredis.Cmdable, f func([]string)) error {
		const count = 1000 // keys that one step looks at
		for cursor := uint64(0); ; {
			names, next, err := c.Scan(ctx, cursor, pattern, count).Result()
			if err != nil {
				return err
			}
			f(names)
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	}
	c, ok := s.client.(*goredis.ClusterClient)
	if !ok {
		return one(ctx, s.client, f)
	}
	pages := make(chan []string)
	ended := make(chan error, 1)
	go func() {
		defer close(pages)
		ended <- c.ForEachMaster(ctx, func(ctx context.Context, node *goredis.Client) error {
			return one(ctx, node, func(names []string) { pages <- names })
		})
	}()
	for names := range pages {
		f(names)
	}
	return <-ended
}
