package http

// anyVerb stands for every verb.
const anyVerb = "*"

// route is one endpoint. A "*" at the end of path stands for a key: the rest of the request's path, including
// slashes, decoded once.
type route struct {
	verbs  string // separated by spaces; GET answers HEAD too, except if noHead is set
	path   string
	serve  handler
	noHead bool
	open   bool // needs no token, and is served while the node starts
	early  bool // is served while the node starts
	often  bool // is found without the mux, by Face.direct: one route for GET, and one for POST
	exact  bool // has no form with a slash at the end: that is the way to an empty key
}

// routes returns all endpoints.
func (f *Face) routes() []route {
	return []route{
		// State.
		{verbs: "GET", path: "/v1.0/state/{store}", serve: f.listState, exact: true},
		{verbs: "POST PUT", path: "/v1.0/state/{store}", serve: f.saveState, often: true},
		{verbs: "POST PUT", path: "/v1.0/state/{store}/bulk", serve: f.bulkGetState},
		{verbs: "POST PUT", path: "/v1.0/state/{store}/transaction", serve: f.transactState},
		{verbs: "GET", path: "/v1.0/state/{store}/*", serve: f.getState, often: true},
		{verbs: "DELETE", path: "/v1.0/state/{store}/*", serve: f.deleteState},

		{verbs: "GET", path: "/v1.0/watch/{store}", serve: f.watchState, noHead: true},

		// Actors.
		{verbs: "POST PUT", path: "/v1.0/actors/{type}/{id}/state", serve: f.transactActorState},
		{verbs: "GET", path: "/v1.0/actors/{type}/{id}/state/*", serve: f.getActorState},
		{verbs: "GET POST PUT DELETE", path: "/v1.0/actors/{type}/{id}/method/*", serve: f.callActor},
		{verbs: "POST PUT", path: "/v1.0/actors/{type}/{id}/reminders/*", serve: f.setReminder},
		{verbs: "GET", path: "/v1.0/actors/{type}/{id}/reminders/*", serve: f.getReminder},
		{verbs: "DELETE", path: "/v1.0/actors/{type}/{id}/reminders/*", serve: f.deleteReminder},
		{verbs: "POST PUT", path: "/v1.0/actors/{type}/{id}/timers/*", serve: f.setTimer},
		{verbs: "DELETE", path: "/v1.0/actors/{type}/{id}/timers/*", serve: f.deleteTimer},

		// Secrets.
		{verbs: "GET", path: "/v1.0/secrets/{store}/bulk", serve: f.bulkGetSecrets},
		{verbs: "GET", path: "/v1.0/secrets/{store}/*", serve: f.getSecret},

		// Locks.
		{verbs: "POST", path: "/v1.0/lock/{store}", serve: f.tryLock},
		{verbs: "POST", path: "/v1.0-alpha1/lock/{store}", serve: f.tryLock},
		{verbs: "POST", path: "/v1.0/lock/{store}/renew", serve: f.renewLock},
		{verbs: "GET", path: "/v1.0/lock/{store}/*", serve: f.getLock},
		{verbs: "POST", path: "/v1.0/unlock/{store}", serve: f.unlock},
		{verbs: "POST", path: "/v1.0-alpha1/unlock/{store}", serve: f.unlock},

		// Jobs.
		{verbs: "GET", path: "/v1.0/jobs", serve: f.listJobs},
		{verbs: "DELETE", path: "/v1.0/jobs", serve: f.deleteJobs},
		{verbs: "POST", path: "/v1.0/jobs/*", serve: f.scheduleJob},
		{verbs: "POST", path: "/v1.0-alpha1/jobs/*", serve: f.scheduleJob},
		{verbs: "GET", path: "/v1.0/jobs/*", serve: f.getJob},
		{verbs: "GET", path: "/v1.0-alpha1/jobs/*", serve: f.getJob},
		{verbs: "DELETE", path: "/v1.0/jobs/*", serve: f.deleteJob},
		{verbs: "DELETE", path: "/v1.0-alpha1/jobs/*", serve: f.deleteJob},

		// Configuration.
		{verbs: "GET", path: "/v1.0/configuration/{store}", serve: f.getConfiguration},
		{verbs: "GET", path: "/v1.0-alpha1/configuration/{store}", serve: f.getConfiguration},
		{verbs: "POST PUT", path: "/v1.0/configuration/{store}", serve: f.putConfiguration},
		{verbs: "DELETE", path: "/v1.0/configuration/{store}", serve: f.deleteConfiguration},
		{verbs: "GET", path: "/v1.0/configuration/{store}/subscribe", serve: f.subscribeConfiguration,
			noHead: true},
		{verbs: "GET", path: "/v1.0-alpha1/configuration/{store}/subscribe", serve: f.subscribeConfiguration,
			noHead: true},
		{verbs: "GET", path: "/v1.0/configuration/{store}/{id}/unsubscribe", serve: f.unsubscribeConfiguration,
			noHead: true},
		{verbs: "GET", path: "/v1.0-alpha1/configuration/{store}/{id}/unsubscribe", serve: f.unsubscribeConfiguration,
			noHead: true},

		// Output bindings.
		{verbs: "POST PUT", path: "/v1.0/bindings/{name}", serve: f.invokeBinding},

		// Calls to applications. A path without an endpoint is also a method if the header dapr-app-id names an
		// application.
		{verbs: anyVerb, path: "/v1.0/invoke/*", serve: f.invokeMethod},

		// The runtime itself.
		{verbs: "GET", path: "/v1.0/metadata", serve: f.getMetadata, early: true},
		{verbs: "PUT", path: "/v1.0/metadata/*", serve: f.putMetadata, early: true},
		{verbs: "POST", path: "/v1.0/shutdown", serve: f.shutdown, early: true},
		{verbs: "GET", path: "/openapi.json", serve: f.getOpenAPI, early: true},

		// Health.
		{verbs: "GET", path: "/v1.0/healthz", serve: f.healthz, open: true},
		{verbs: "GET", path: "/v1.0/healthz/outbound", serve: f.healthzOutbound, open: true},
		{verbs: "GET", path: "/livez", serve: f.livez, open: true},
		{verbs: "GET", path: "/readyz", serve: f.readyz, open: true},
		{verbs: "GET", path: "/readyz/placed", serve: f.readyzPlaced, open: true},
	}
}
