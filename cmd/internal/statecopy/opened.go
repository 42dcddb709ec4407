package statecopy

import (
	"context"
	"maps"
	"strings"
	"sync"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// maxPrefixes is the number of foreign prefixes that are counted separately.
const maxPrefixes = 100

// Opened is a store that this process has opened, as a Source. Create one with NewOpened.
type Opened struct {
	store  state.Store
	prefix state.KeyPrefix
	owner  state.Owner

	mu     sync.Mutex
	others map[string]int64
}

// NewOpened returns a source for the keys that one application, the owner, has in the store of i. It returns
// fault.Invalid in these cases:
//
//   - The store cannot list keys, or cannot read several keys in one request.
//   - The key prefix of i contains the namespace of the application, but owner has no namespace.
func NewOpened(i *state.Instance, owner state.Owner) (*Opened, error) {
	can := state.AbilitiesOf(i.Store)
	if can.Lister == nil || can.BulkGetter == nil {
		return nil, fault.New(fault.Invalid, "statecopy.NewOpened", "the store cannot list its keys")
	}
	if i.KeyPrefix.String() == state.KeyPrefixNamespace && owner.Namespace == "" {
		return nil, &fault.Error{Code: fault.Invalid, Op: "statecopy.NewOpened",
			Msg:  "the keyPrefix of " + i.Name + " is namespace, and the namespace of the application is not known",
			Hint: "give it with --from-namespace"}
	}
	return &Opened{store: i.Store, prefix: i.KeyPrefix, owner: owner, others: map[string]int64{}}, nil
}

// Others returns how many of the listed keys belong to other owners, by the prefix of the key. The prefix is the part
// before the first "||". At most 100 prefixes are counted separately. The entry "" counts the rest, and the keys
// without a prefix.
func (o *Opened) Others() map[string]int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.others)
}

// Page implements Source. The token is a stored key.
func (o *Opened) Page(ctx context.Context, prefix, token string, limit int) ([]Key, string, error) {
	list := state.ListRequest{After: token, Limit: limit}
	if prefix != "" {
		list.Prefix = o.prefix.Stored(o.owner, prefix)
	}
	page, err := state.AbilitiesOf(o.store).Lister.List(ctx, list)
	if err != nil {
		return nil, "", err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	keys, next := make([]Key, 0, len(page.Items)), ""
	for _, item := range page.Items {
		next = item.Key
		if key, own := o.original(item.Key); own {
			if prefix == "" || !strings.Contains(key, state.Separator) {
				k := Key{Name: key, ETag: item.ETag}
				if item.Err != nil {
					k.Err = fault.Text(item.Err)
				}
				keys = append(keys, k)
			}
			continue
		}
		other, _, ok := strings.Cut(item.Key, state.Separator)
		if _, counted := o.others[other]; !ok || !counted && len(o.others) >= maxPrefixes {
			other = ""
		}
		o.others[other]++
	}
	if !page.More {
		next = ""
	}
	return keys, next, nil
}

// original converts a key in the store to the key that the application uses. If the stored key does not belong to the
// owner, own is false.
func (o *Opened) original(stored string) (key string, own bool) {
	if key, own := o.prefix.Original(o.owner, stored); own {
		return key, true
	}
	const separators = 2 // number of separators in a key of actor state, after the application
	key, own = strings.CutPrefix(stored, o.owner.App+state.Separator)
	return key, own && strings.Count(key, state.Separator) == separators
}

// stored is the inverse of original.
func (o *Opened) stored(key string) string {
	if strings.Contains(key, state.Separator) {
		return o.owner.App + state.Separator + key
	}
	return o.prefix.Stored(o.owner, key)
}

// Read implements Source.
func (o *Opened) Read(ctx context.Context, keys []string) (map[string]Value, error) {
	request := state.BulkGetRequest{Keys: make([]string, len(keys)),
		ReadOptions: state.ReadOptions{Consistency: state.Strong}}
	for i, k := range keys {
		request.Keys[i] = o.stored(k)
	}
	items, err := state.AbilitiesOf(o.store).BulkGetter.BulkGet(ctx, request)
	if err != nil {
		return nil, err
	}
	out := make(map[string]Value, len(keys))
	for i, item := range items {
		if item.Err != nil || item.Found() {
			out[keys[i]] = Value{Data: item.Value, Binary: item.ContentType != "", Expires: item.Expires, Err: item.Err}
		}
	}
	return out, nil
}
