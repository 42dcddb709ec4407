package state

import "context"

// Instrument returns a wrapper of a store that records metrics of its calls. The name is the value of the label
// "store". fallback is the consistency level of requests that set none. The wrapper has the same Abilities as the
// store.
func (m *Metrics) Instrument(store Store, name string, fallback Consistency) Store {
	below := AbilitiesOf(store)
	offered := [operations]bool{
		opGet: true, opSet: true, opDelete: true,
		opTransact: below.Transactor != nil, opBulkGet: below.BulkGetter != nil, opList: below.Lister != nil,
	}
	return wrap(&instrumented{Store: store, below: below, meter: m.meter(name, fallback, offered)}, below)
}

type instrumented struct {
	Store
	below Abilities // abilities of the wrapped store
	meter *meter
}

// Get implements Store.
func (i *instrumented) Get(ctx context.Context, r GetRequest) (Item, error) {
	start := i.meter.begin(opGet)
	item, err := i.Store.Get(ctx, r)
	result := outcomeOf(err)
	if err == nil && !item.Found() {
		result = outcomeNotFound
	}
	i.meter.end(opGet, start, r.Consistency, result)
	i.meter.read.Add(float64(len(item.Value)))
	return item, err
}

// Set implements Store.
func (i *instrumented) Set(ctx context.Context, r SetRequest) (Written, error) {
	var size int
	for n := range r.Items {
		size += len(r.Items[n].Value)
	}
	start := i.meter.begin(opSet)
	w, err := i.Store.Set(ctx, r)
	i.wrote(err, size)
	i.meter.end(opSet, start, r.Consistency, outcomeOf(err))
	return w, err
}

// Delete implements Store.
func (i *instrumented) Delete(ctx context.Context, r DeleteRequest) (Written, error) {
	start := i.meter.begin(opDelete)
	w, err := i.Store.Delete(ctx, r)
	i.meter.end(opDelete, start, r.Consistency, outcomeOf(err))
	return w, err
}

// Transact implements Transactor.
func (i *instrumented) Transact(ctx context.Context, r TransactRequest) (Written, error) {
	var size int
	for n := range r.Operations {
		if r.Operations[n].Kind == Upsert {
			size += len(r.Operations[n].Value)
		}
	}
	start := i.meter.begin(opTransact)
	w, err := i.below.Transactor.Transact(ctx, r)
	i.wrote(err, size)
	i.meter.end(opTransact, start, r.Consistency, outcomeOf(err))
	return w, err
}

// BulkGet implements BulkGetter. The outcome is ok only if every key could be read.
func (i *instrumented) BulkGet(ctx context.Context, r BulkGetRequest) ([]Item, error) {
	start := i.meter.begin(opBulkGet)
	items, err := i.below.BulkGetter.BulkGet(ctx, r)
	result := outcomeOf(err)
	var size int
	for n := range items {
		size += len(items[n].Value)
		if result == outcomeOK {
			result = outcomeOf(items[n].Err)
		}
	}
	i.meter.end(opBulkGet, start, r.Consistency, result)
	i.meter.read.Add(float64(size))
	return items, err
}

// List implements Lister.
func (i *instrumented) List(ctx context.Context, r ListRequest) (Page, error) {
	start := i.meter.begin(opList)
	page, err := i.below.Lister.List(ctx, r)
	var size int
	for n := range page.Items {
		size += len(page.Items[n].Value)
	}
	i.meter.end(opList, start, r.Consistency, outcomeOf(err))
	i.meter.read.Add(float64(size))
	return page, err
}

// Features implements Featurer.
func (i *instrumented) Features() []Feature { return i.below.Featurer.Features() }

func (i *instrumented) wrote(err error, size int) {
	if err == nil {
		i.meter.written.Add(float64(size))
	}
}
