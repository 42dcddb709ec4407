package state

import (
	"context"
	"slices"
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
	return &decrypting{Watch: w, store: e, at: w.Position()}, nil
}

// decrypting decrypts the values of a watch.
type decrypting struct {
	Watch
	store *encrypted
	at    Position // the watch has delivered everything up to this position
}

// Position implements Watch. It returns the position after the last part that could be decrypted. The wrapped watch may
// already be after a later part that could not be decrypted. A client that resumed at the position of the wrapped watch
// would miss this later part.
func (d *decrypting) Position() Position { return d.at }

// Next implements Watch.
func (d *decrypting) Next(ctx context.Context, wait time.Duration) (WatchPart, error) {
	part, err := d.Watch.Next(ctx, wait)
	if err != nil {
		return part, err
	}
	return d.open(part)
}

// Poll implements Watch.
func (d *decrypting) Poll() (WatchPart, Readiness, error) {
	part, found, err := d.Watch.Poll()
	if err != nil || found != WatchReady {
		return part, found, err
	}
	if part, err = d.open(part); err != nil {
		return WatchPart{}, WatchIdle, err
	}
	return part, WatchReady, nil
}

// open decrypts the values of a part. It first copies the lists of items and changes, because other watches may share
// these lists.
func (d *decrypting) open(part WatchPart) (WatchPart, error) {
	for _, list := range [...]*[]Change{&part.Items, &part.Changes} {
		*list = slices.Clone(*list)
		for i := range *list {
			c := &(*list)[i]
			if c.Deleted {
				continue
			}
			if err := d.store.open(c.Key, &c.Item); err != nil {
				return WatchPart{}, err
			}
		}
	}
	d.at = d.Watch.Position()
	return part, nil
}
