package api

// The public error codes. They are part of the API: never renamed, never reused.
const (
	CodeMalformed                       = "ERR_MALFORMED_REQUEST"
	CodeBodyRead                        = "ERR_BODY_READ"
	CodeNotFound                        = "ERR_NOT_FOUND"
	CodeMethodNotAllowed                = "ERR_METHOD_NOT_ALLOWED"
	CodeNotImplemented                  = "ERR_NOT_IMPLEMENTED"
	CodeUnauthenticated                 = "ERR_UNAUTHENTICATED"
	CodePermissionDenied                = "ERR_PERMISSION_DENIED"
	CodeInternal                        = "ERR_INTERNAL"
	CodeOverloaded                      = "ERR_OVERLOADED"
	CodeTooManyRequests                 = "ERR_TOO_MANY_REQUESTS" // from middleware.http.ratelimit
	CodeStoreNotConfigured              = "ERR_STATE_STORE_NOT_CONFIGURED"
	CodeStoreStarting                   = "ERR_STATE_STORE_STARTING" // components are being loaded
	CodeStoreNotFound                   = "ERR_STATE_STORE_NOT_FOUND"
	CodeStoreNotSupported               = "ERR_STATE_STORE_NOT_SUPPORTED"
	CodeTooManyOperations               = "ERR_STATE_STORE_TOO_MANY_TRANSACTIONS"
	CodeOperationUnknown                = "ERR_NOT_SUPPORTED_STATE_OPERATION"
	CodeStateGet                        = "ERR_STATE_GET"
	CodeStateBulkGet                    = "ERR_STATE_BULK_GET"
	CodeStateSave                       = "ERR_STATE_SAVE"
	CodeStateDelete                     = "ERR_STATE_DELETE"
	CodeStateTransaction                = "ERR_STATE_TRANSACTION"
	CodeStateList                       = "ERR_STATE_LIST"
	CodeWatch                           = "ERR_WATCH"
	CodeWatchCompacted                  = "ERR_WATCH_COMPACTED"
	CodeSecretStoresNotConfigured       = "ERR_SECRET_STORES_NOT_CONFIGURED"
	CodeSecretStoreNotFound             = "ERR_SECRET_STORE_NOT_FOUND"
	CodeSecretGet                       = "ERR_SECRET_GET"
	CodeActorRuntimeNotFound            = "ERR_ACTOR_RUNTIME_NOT_FOUND"
	CodeActorStateGet                   = "ERR_ACTOR_STATE_GET"
	CodeActorStateSave                  = "ERR_ACTOR_STATE_TRANSACTION_SAVE"
	CodeActorInvoke                     = "ERR_ACTOR_INVOKE_METHOD"
	CodeActorStackDepth                 = "ERR_ACTOR_STACK_DEPTH"
	CodeActorInstanceMissing            = "ERR_ACTOR_INSTANCE_MISSING"
	CodeReminderCreate                  = "ERR_ACTOR_REMINDER_CREATE"
	CodeReminderExists                  = "ERR_ACTOR_REMINDER_ALREADY_EXISTS"
	CodeReminderNonHosted               = "ERR_ACTOR_REMINDER_NON_HOSTED"
	CodeReminderGet                     = "ERR_ACTOR_REMINDER_GET"
	CodeReminderNotFound                = "ERR_ACTOR_REMINDER_NOT_FOUND"
	CodeReminderDelete                  = "ERR_ACTOR_REMINDER_DELETE"
	CodeTimerCreate                     = "ERR_ACTOR_TIMER_CREATE"
	CodeTimerDelete                     = "ERR_ACTOR_TIMER_DELETE"
	CodeDirectInvoke                    = "ERR_DIRECT_INVOKE"
	CodeHealthNotReady                  = "ERR_HEALTH_NOT_READY"
	CodeHealthAppID                     = "ERR_HEALTH_APPID_NOT_MATCH"
	CodeOutboundNotReady                = "ERR_OUTBOUND_HEALTH_NOT_READY"
	CodeInvokeOutputBinding             = "ERR_INVOKE_OUTPUT_BINDING"
	CodeLockStoreNotConfigured          = "ERR_LOCK_STORE_NOT_CONFIGURED"
	CodeLockStoreNotFound               = "ERR_LOCK_STORE_NOT_FOUND"
	CodeTryLock                         = "ERR_TRY_LOCK"
	CodeUnlock                          = "ERR_UNLOCK"
	CodeConfigurationStoreNotConfigured = "ERR_CONFIGURATION_STORE_NOT_CONFIGURED"
	CodeConfigurationStoreNotFound      = "ERR_CONFIGURATION_STORE_NOT_FOUND"
	CodeConfigurationGet                = "ERR_CONFIGURATION_GET"
	CodeConfigurationSave               = "ERR_CONFIGURATION_SAVE"
	CodeConfigurationSubscribe          = "ERR_CONFIGURATION_SUBSCRIBE"
	CodeConfigurationUnsubscribe        = "ERR_CONFIGURATION_UNSUBSCRIBE"
	CodePubSubNotFound                  = "ERR_PUBSUB_NOT_FOUND"
	CodePubSubNotConfigured             = "ERR_PUBSUB_NOT_CONFIGURED"
	CodePubSubEmpty                     = "ERR_PUBSUB_EMPTY"
	CodeTopicNameEmpty                  = "ERR_TOPIC_NAME_EMPTY"
	CodePubSubMetadata                  = "ERR_PUBSUB_REQUEST_METADATA"
	CodePubSubEvents                    = "ERR_PUBSUB_EVENTS_SER"
	CodePubSubForbidden                 = "ERR_PUBSUB_FORBIDDEN"
	CodePubSubPublish                   = "ERR_PUBSUB_PUBLISH_MESSAGE"
	CodeCloudEventCreation              = "ERR_PUBSUB_CLOUD_EVENTS_SER"
)

// The reasons that Quorate defines. Reasons that start with DAPR_ are defined by Dapr.
const (
	ReasonNoQuorum      = "no_quorum"      // not done: no majority, or closing; the message says which
	ReasonReadOnly      = "read_only"      // not done: the disk is nearly full, values are refused for now
	ReasonFormatBlocked = "format_blocked" // not done: a server cannot read the format that this needs
	ReasonOverloaded    = "overloaded"     // not done: too many writes or requests are waiting
	ReasonTimeout       = "timeout"        // not done in time
	ReasonIndeterminate = "indeterminate"  // may have been done
	ReasonConflict      = "conflict"       // a condition did not hold; nothing was changed
	ReasonLockLost      = "lock_lost"      // a lock has not the token of the write; nothing was written
	ReasonActorMoved    = "actor_moved"    // an actor has another owner by now; nothing was written
	ReasonTooLarge      = "too_large"      // a limit was exceeded
	ReasonDenied        = "denied"
	ReasonUnsupported   = "unsupported"
	ReasonStarting      = "starting" // components are still being loaded
	ReasonNotReady      = "not_ready"
	ReasonCorrupt       = "corrupt"
	ReasonInternal      = "internal"
	ReasonNotFound      = "not_found"      // what the request names does not exist
	ReasonNotConfigured = "not_configured" // nothing of the kind is configured
	ReasonCompacted     = "compacted"      // a watch: the changes after the position are no longer kept
	ReasonRestored      = "restored"       // a watch: a backup has replaced all data
	ReasonClosing       = "closing"        // a watch: the node stops
	ReasonMoved         = "moved"          // a watch: the node cannot finish the snapshot
	ReasonUnavailable   = "unavailable"    // another service that is needed cannot be reached
	ReasonBadAnswer     = "bad_answer"     // may have been done: the answer of the application or server was refused

	reasonNotConfigured = "DAPR_STATE_NOT_CONFIGURED"
	reasonNotFound      = "DAPR_STATE_NOT_FOUND"
	reasonIllegalKey    = "DAPR_STATE_ILLEGAL_KEY"
	reasonNoTransaction = "DAPR_STATE_TRANSACTIONS_NOT_SUPPORTED"
	reasonTooMany       = "DAPR_STATE_TOO_MANY_TRANSACTIONS"
)
