local id = call('HGET', prefix .. ':task_ids', argument())
if not id then return {} end
return call('HMGET', task_key(id), 'state', 'lane', 'payload', 'due_at')
