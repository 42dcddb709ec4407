package state

import (
	"context"
	"time"
)

// Watch implements Watcher.
func (c *configured) Watch(ctx context.Context, r WatchRequest) (Watch, error) {
	return c.below.Watcher.Watch(ctx, r)
}

// Watch implements Watcher.
func (i *instrumented) Watch(ctx context.Context, r WatchRequest) (Watch, error) {
	return i.below.Watcher.Watch(ctx, r)
}

// Watch implements Watcher.
func (e *encrypted) Watch(ctx context.Context, r WatchRequest) (Watch, error) {
	w, err := e.below.Watcher.Watch(ctx, r)
	if err != nil {
		return nil, err
	}
	return &decrypting{w, e}, nil
}

// decrypting decrypts the values of a watch.
type decrypting struct {
	Watch
	store *encrypted
}

// Next implements Watch.
func (d *decrypting) Next(ctx context.Context, wait time.Duration) (WatchPart, error) {
	part, err := d.Watch.Next(ctx, wait)
	if err != nil {
		return part, err
	}
	for _, list := range [...][]Change{part.Items, part.Changes} {
		for i := range list {
			if list[i].Deleted {
				continue
			}
			if err := d.store.open(list[i].Key, &list[i].Item); err != nil {
				return WatchPart{}, err
			}
		}
	}
	return part, nil
}
