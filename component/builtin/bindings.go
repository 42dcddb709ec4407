package builtin

import (
	"context"

	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/bindings/azure/eventgrid"
	"github.com/quorate/quorate/component/bindings/cron"
	"github.com/quorate/quorate/component/bindings/http"
	"github.com/quorate/quorate/component/loader"
)

func allBindings() map[string]loader.BindingFactory {
	return map[string]loader.BindingFactory{
		eventgrid.Type: {Fields: eventgrid.Fields(), Open: openEventGrid},
		cron.Type:      {Fields: cron.Fields(), Open: openCron},
		http.Type:      {Fields: http.Fields(), Open: openHTTP},
	}
}

func openCron(_ context.Context, c loader.BindingConfig) (bindings.Binding, error) {
	return cron.Open(cron.Options{Name: c.Name, Namespace: c.Namespace, Metadata: c.Metadata, Claims: c.Claims,
		Logger: c.Logger})
}

func openEventGrid(_ context.Context, c loader.BindingConfig) (bindings.Binding, error) {
	return eventgrid.Open(eventgrid.Options{
		Name: c.Name, Namespace: c.Namespace, Direction: c.Direction, Metadata: c.Metadata, Claims: c.Claims,
		Logger: c.Logger,
	})
}

func openHTTP(_ context.Context, c loader.BindingConfig) (bindings.Binding, error) {
	return http.Open(http.Options{Metadata: c.Metadata, Logger: c.Logger})
}
